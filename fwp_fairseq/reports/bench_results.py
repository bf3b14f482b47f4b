"""What the records of `fwp-bench ops` say; shown by `bench_table` and `bench_plot`."""

from dataclasses import dataclass

from fwp_fairseq.reports import bench_records

EXPERIMENT = "bench_ops"
QUANTITIES = ("ms", "gflops", "peak_mb")
CONFIG = {
    "device": str,
    "dtype": str,
    "threads": int,
    "repeats": int,
    "matmul_size": int,
    "left_out": dict,
    "environment": dict,
}
# Order and names of the contenders in tables and legends.
CONTENDERS = {
    ("softmax", "sdpa"): "softmax attention (SDPA)",
    ("delta", "torch"): "delta, torch",
    ("delta", "triton"): "delta, triton",
    ("delta", "reference"): "delta, step by step",
    ("delta", "fla"): "delta, fla-core torch",
    ("sum", "torch"): "sum, torch",
    ("sum", "triton"): "sum, triton",
    ("sum", "reference"): "sum, step by step",
    ("sum", "fast-transformers"): "sum, fast-transformers",
}
SDPA, DELTA, FLA = ("softmax", "sdpa"), ("delta", "torch"), ("delta", "fla")
SWEEP_LENGTHS = 3  # shapes that differ only in L, at least this many, are a sweep


@dataclass
class BenchRun:
    """One record. cells: {((rule, name), (B, H, L, Dk, Dv)): {"ms": ..., "gflops": ..., "peak_mb": ...}}."""

    record: dict
    cells: dict

    @classmethod
    def from_record(cls, record):
        """Raises ValueError where a metric is not of the benchmark's."""
        cells = {}
        for key, value in record["metrics"].items():
            if key == "matmul/gflops":
                continue
            contender, shape, quantity = _parse(key)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise ValueError(f"metrics: {key} must be a number >= 0, got {value!r}")
            cells.setdefault((contender, shape), {})[quantity] = value
        for (contender, shape), cell in cells.items():
            missing = [quantity for quantity in QUANTITIES if quantity not in cell]
            if missing:
                raise ValueError(f"metrics: {'/'.join(contender)} at {shape} has no {', '.join(missing)}")
        if not isinstance(record["metrics"].get("matmul/gflops"), (int, float)):
            raise ValueError("metrics: matmul/gflops is missing or not a number")
        bench_records.check_config(record, **CONFIG)
        return cls(record, cells)

    @property
    def title(self):
        return f"{bench_records.machine(self.record)}, {self.record['config']['dtype']}"

    def contenders(self, shapes):
        """Those measured at one of the shapes, in a fixed order."""
        return [c for c in CONTENDERS if any((c, shape) in self.cells for shape in shapes)]

    def get(self, contender, shape, quantity="ms"):
        return self.cells.get((contender, shape), {}).get(quantity)

    def sweeps(self):
        """Lists of shapes that differ only in L, each in the order of L."""
        groups = {}
        for shape in sorted({shape for _, shape in self.cells}):
            groups.setdefault((*shape[:2], *shape[3:]), []).append(shape)
        return [shapes for shapes in groups.values() if len(shapes) >= SWEEP_LENGTHS]

    def single_shapes(self):
        """Shapes outside the sweeps, in the order in which they were run."""
        swept = {shape for shapes in self.sweeps() for shape in shapes}
        return list(dict.fromkeys(shape for _, shape in self.cells if shape not in swept))


def load_runs(results_dir):
    """(runs, problems) of all records of the benchmark. Raises ReportError where none can be shown."""
    return bench_records.load_runs(results_dir, EXPERIMENT, "ops", BenchRun.from_record)


def _parse(key):
    """"delta/torch/4x8x384x32x32/ms" -> (("delta", "torch"), (4, 8, 384, 32, 32), "ms")."""
    words = key.split("/")
    if len(words) == 4 and tuple(words[:2]) in CONTENDERS and words[3] in QUANTITIES:
        sizes = words[2].split("x")
        if len(sizes) == 5 and all(size.isdecimal() for size in sizes):
            return tuple(words[:2]), tuple(map(int, sizes)), words[3]
    raise ValueError(f"metrics: {key!r} is not of the form delta/torch/4x8x384x32x32/ms")

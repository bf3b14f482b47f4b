"""The benchmark as text: a section for each record, with single shapes, length sweeps, and what was left out."""

from fwp_fairseq.reports.bench_results import CONTENDERS, DELTA, FLA, SDPA
from fwp_fairseq.reports.report import markdown_table, three_digits

# What the torch backend of the delta rule is to reach on two CPU cores, in milliseconds next to what attention (SDPA)
# took on the machine where the goals were set. Only the ratio carries over to another machine.
GOALS = {
    (8, 8, 256, 16, 16): 30 / 21,
    (4, 8, 384, 32, 32): 40 / 36,
    (2, 8, 2048, 64, 64): 220 / 484,
    (1, 8, 4096, 128, 64): 380 / 4386,
}


def markdown(runs):
    introduction = (
        "# Fast weight rules: time and memory\n\n"
        "One forward and backward pass, from queries, keys, values (and write strengths) to their gradients. All "
        "contenders of a shape ran in turn, round after round, in one process; times are medians over the rounds. "
        "GFLOP/s count the arithmetic that the rule itself asks for (chunked forms do more), in percent of a float "
        "matrix product measured in the same rounds. Memory is the most that the tensors made in the pass take up at "
        "once, inputs not counted. Built by `fwp-report bench` from the records of `fwp-bench ops`.\n\n"
        "![Time and memory against length](../figures/bench.png)\n"
    )
    return "\n".join([introduction, *(run_markdown(run) for run in runs)])


def run_markdown(run):
    """One record."""
    parts = [f"## {run.title}\n", _how(run) + "\n"]
    if run.single_shapes():
        parts += [_single_shapes(run, run.single_shapes()) + "\n"]
    for shapes in run.sweeps():
        parts += [_sweep(run, shapes)]
    left_out = run.record["config"]["left_out"]
    if left_out:
        parts += ["Left out:\n", *(f"- {what}: {reason}" for what, reason in left_out.items()), ""]
    return "\n".join(parts)


def brief(runs):
    """The delta rule next to attention, shape by shape."""
    lines = []
    for run in runs:
        lines.append(f"{run.title}: delta rule (torch) / attention, time")
        for shape in sorted({shape for _, shape in run.cells}, key=lambda shape: shape[2]):
            ratio = _ratio(run, DELTA, SDPA, shape)
            if ratio:
                goal = f"   goal {three_digits(GOALS[shape])}" if _has_goal(run, DELTA, shape) else ""
                lines.append(f"  {_name(shape):24} {ratio:>7}{goal}")
    return "\n".join(lines)


def _how(run):
    record, config = run.record, run.record["config"]
    versions = ", ".join(f"{name} {record['versions'].get(name)}" for name in ("torch", "triton"))
    environment = ", ".join(f"{name}={value}" for name, value in config["environment"].items())
    size = config["matmul_size"]
    return (
        f"Median of {config['repeats']} rounds; a {size} × {size} matrix product reached "
        f"{three_digits(record['metrics']['matmul/gflops'])} GFLOP/s; {versions}; commit {record['git_commit']}; "
        f"{record['created'][:10]}" + (f"; {environment}" if environment else "") + "."
    )


def _single_shapes(run, shapes):
    header = ["B, H, L, Dk, Dv", "", "ms", "× SDPA", "goal", "× fla", "GFLOP/s", "% of matmul", "peak MB"]
    rows = []
    for shape in shapes:
        for contender in run.contenders([shape]):
            gflops = run.get(contender, shape, "gflops")
            rows.append([
                _name(shape),
                CONTENDERS[contender],
                three_digits(run.get(contender, shape)),
                _ratio(run, contender, SDPA, shape),
                f"≤ {three_digits(GOALS[shape])}" if _has_goal(run, contender, shape) else "",
                _ratio(run, contender, FLA, shape) if contender[0] == "delta" else "",
                three_digits(gflops),
                f"{100 * gflops / run.record['metrics']['matmul/gflops']:.1f}",
                three_digits(run.get(contender, shape, "peak_mb")),
            ])  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def _has_goal(run, contender, shape):
    config = run.record["config"]
    return contender == DELTA and shape in GOALS and (config["device"], config["dtype"]) == ("cpu", "float32")


def _sweep(run, shapes):
    batch, heads, _, key_dim, value_dim = shapes[0]
    contenders = run.contenders(shapes)
    header = ["L", *(CONTENDERS[contender] for contender in contenders)]
    parts = [f"### Length: B = {batch}, H = {heads}, Dk = {key_dim}, Dv = {value_dim}\n"]
    for title, quantity in (("Milliseconds", "ms"), ("Peak memory in MB", "peak_mb")):
        rows = [
            [str(shape[2]), *(three_digits(run.get(contender, shape, quantity)) for contender in contenders)]
            for shape in shapes
        ]
        growth = [_growth(run, contender, shapes, quantity) for contender in contenders]
        parts += [f"{title}:\n", markdown_table(header, [*rows, ["last doubling", *growth]]) + "\n"]
    return "\n".join(parts)


def _growth(run, contender, shapes, quantity):
    """By what factor the quantity grew at the last doubling of L that was measured."""
    values = {shape[2]: run.get(contender, shape, quantity) for shape in shapes}
    measured = {length: value for length, value in values.items() if value}
    doublings = [length for length in measured if 2 * length in measured]
    return f"× {measured[2 * max(doublings)] / measured[max(doublings)]:.2f}" if doublings else ""


def _ratio(run, contender, other, shape):
    ours, theirs = run.get(contender, shape), run.get(other, shape)
    return f"{ours / theirs:.3f}" if ours is not None and theirs else ""


def _name(shape):
    return ", ".join(map(str, shape))

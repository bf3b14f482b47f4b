"""Words per second and memory of training, from the records of `fwp-bench training`."""

from dataclasses import dataclass

from fwp_fairseq.reports import bench_records, bench_training_plot, picture
from fwp_fairseq.reports.published import paper_throughput
from fwp_fairseq.reports.report import Part, Report, markdown_table, three_digits

EXPERIMENT = "bench_training"
# Order and names of the rows in tables and legends.
ROWS = {
    "transformer": "transformer",
    "linear": "linear (sum rule)",
    "delta": "delta",
    "performer": "performer",
    "performer_delta": "delta, FAVOR+",
    "dpfp_sum": "DPFP, sum rule",
    "dpfp_delta": "delta, DPFP",
}
REFERENCE = "transformer"
# The paper does not say at which setting it measured; its ratios are set beside those at its medium setting.
PAPER_SETTING, PAPER_LENGTH = "medium", 384
# names in the records, and how the paper's figures are called
QUANTITIES = {"words_per_second": "words_per_second", "peak_mb": "memory_gb"}
PROFILE = "profile/"
INTRODUCTION = """\
# Training: words per second and memory

Whole language models with the paper's sizes and vocabulary, a full training step: forward and backward pass, clipping,
Adam. The words are random, drawn by the Zipf-Mandelbrot law (p(rank) ~ (rank + 2.7)^-1.2), so that the clusters of the
adaptive softmax are as busy as on text; a step has about as many of them at every length. All rows took steps at
all lengths in turn, round after round, in one process; times are medians over the rounds, and of them the ratios are
what carries over to other machines. Memory is the most that a step takes up at once: weights, the two moments of
Adam, gradients, and what the passes keep. The paper's ratios are of its words per second and gigabytes on its GPUs
(our source does not name the setting). Built by `fwp-report bench_training` from the records of `fwp-bench training`.

![Speed and memory against length](../figures/bench_training.png)
"""


@dataclass
class TrainingRun:
    """One record. curves[row]: {"words_per_second": a number for each of the lengths, "peak_mb": likewise}."""

    record: dict
    lengths: list
    words: list
    curves: dict

    @classmethod
    def from_record(cls, record):
        """Raises ValueError where a curve or a setting is missing or does not fit."""
        bench_records.check_config(
            record, setting=str, rows=list, rounds=int, threads=int, dictionary=int, layers=int, d_model=int
        )
        rows = [row for row in ROWS if row in record["config"]["rows"]]
        lengths = record["curves"].get("length")
        if not lengths:
            raise ValueError("curves: length is missing or empty")
        if REFERENCE not in rows:
            raise ValueError(f"config: rows has no {REFERENCE}")
        curves = {
            row: {name: bench_records.positive_curve(record, f"{row}/{name}", len(lengths)) for name in QUANTITIES}
            for row in rows
        }
        return cls(record, lengths, bench_records.positive_curve(record, "words", len(lengths)), curves)

    @property
    def title(self):
        return f"{bench_records.machine(self.record)}, {self.record['config']['setting']} models"

    @property
    def profile(self):
        """{part: milliseconds} of a step of the delta row, in the order in which they were recorded."""
        metrics = self.record["metrics"]
        return {name.split("/")[1]: value for name, value in metrics.items() if name.startswith(PROFILE)}

    def ratio(self, row, quantity, place):
        return self.curves[row][quantity][place] / self.curves[REFERENCE][quantity][place]


def build(results_dir):
    """Report with a section for each device and setting. Raises ReportError where no record can be shown."""
    runs, problems = bench_records.load_runs(results_dir, EXPERIMENT, "training", TrainingRun.from_record)
    paper = paper_throughput(results_dir)
    part = Part(
        name="bench_training",
        markdown="\n".join([INTRODUCTION, *(run_markdown(run, paper) for run in runs)]),
        brief=lambda width: "\n".join(brief(run, paper) for run in runs),
        figure=lambda: picture.png(bench_training_plot.draw, runs, ROWS),
    )
    return Report([part], problems)


def run_markdown(run, paper):
    """One record. paper: {row: PaperThroughput}."""
    config = run.record["config"]
    how = (
        f"{config['layers']} layers, D = {config['d_model']}, a dictionary of {config['dictionary']:,}. "
        f"{config['rounds']} rounds; {bench_records.code(run.record)}."
    )
    header = ["", "L", "words a step", "words/s", "× transformer", "paper", "MB", "× transformer", "paper"]
    rows = []
    for place, length in enumerate(run.lengths):
        for row in run.curves:
            cells = [ROWS[row], str(length), str(run.words[place])]
            for quantity in QUANTITIES:
                cells += [
                    three_digits(run.curves[row][quantity][place]),
                    f"{run.ratio(row, quantity, place):.2f}",
                    _paper_ratio(run, paper, row, quantity, length),
                ]
            rows.append(cells)
    parts = [f"## {run.title}\n", how + "\n", markdown_table(header, rows, text_columns=1) + "\n"]
    if run.profile:
        parts.append(_profile(run))
    return "\n".join(parts)


def brief(run, paper):
    """Speed and memory as ratios to the transformer, beside the paper's."""
    lines = [f"{run.title}: × transformer in words/s and in memory, in brackets the paper's"]
    for place, length in enumerate(run.lengths):
        for row in run.curves:
            if row == REFERENCE:
                continue
            ratios = ""
            for quantity in QUANTITIES:
                published = _paper_ratio(run, paper, row, quantity, length)
                ratios += f"{run.ratio(row, quantity, place):8.2f} {f'({published})' if published else '':6}"
            lines.append(f"  L = {length:<6} {ROWS[row]:20}{ratios}".rstrip())
    return "\n".join(lines)


def _paper_ratio(run, paper, row, quantity, length):
    if (run.record["config"]["setting"], length) != (PAPER_SETTING, PAPER_LENGTH) or row not in paper:
        return ""
    figure = QUANTITIES[quantity]
    return f"{getattr(paper[row], figure) / getattr(paper[REFERENCE], figure):.2f}"


def _profile(run):
    parts = run.profile
    whole = sum(parts.values())
    rows = [[name, three_digits(taken), f"{100 * taken / whole:.1f}"] for name, taken in parts.items()]
    rows.append(["whole step", three_digits(whole), "100.0"])
    return (
        f"Where the time of a step of delta goes, at L = {run.lengths[0]}, forward and backward together. The rule is "
        "the feature map, its normalisation and the fast weights; each part was timed by itself, which takes a little "
        "longer than the step as a whole:\n\n" + markdown_table(["", "ms", "%"], rows, text_columns=1) + "\n"
    )

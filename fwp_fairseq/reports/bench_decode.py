"""Time of a generated token against its position, from the records of `fwp-bench decode`."""

from dataclasses import dataclass

from fwp_fairseq.reports import bench_decode_plot, bench_records, picture
from fwp_fairseq.reports.report import Part, Report, markdown_table, three_digits

EXPERIMENT = "bench_decode"
QUANTITIES = ("ms", "state")
# Order and names of the models in tables and legends.
MODELS = {
    "delta": "delta",
    "linear": "linear (sum rule)",
    "dpfp_delta": "delta, DPFP",
    "transformer_xl": "Transformer-XL",
    "softmax": "softmax, cached",
}
INTRODUCTION = """\
# Generation: time of a token against its position

Whole language models of the same sizes with random weights, batch 1. A token is one pass through the model, the
probabilities of all words, and the likeliest word as the next input. The text ahead of a span of tokens, random words,
was read in segments; then every model generated a few tokens of every span in turn, round after round, and the median
over the span is given. The state is what is kept from token to token: fast weights (and z), the memory of the
Transformer-XL (the inputs of its layers), keys and values. The cache of softmax attention is extended by concatenation,
which copies it, as fairseq's own incremental attention does. Built by `fwp-report bench_decode` from the records of
`fwp-bench decode`.

![Time and state against position](../figures/bench_decode.png)
"""


@dataclass
class DecodeRun:
    """One record. positions: last tokens of the spans; curves[model][quantity]: a number for each of them."""

    record: dict
    positions: list
    curves: dict

    @classmethod
    def from_record(cls, record):
        """Raises ValueError where a curve or a setting is missing or does not fit."""
        positions, curves = record["curves"].get("position"), {}
        if not positions:
            raise ValueError("curves: position is missing or empty")
        for model in MODELS:
            for quantity in QUANTITIES:
                values = bench_records.positive_curve(record, f"{model}/{quantity}", len(positions))
                curves.setdefault(model, {})[quantity] = values
        sizes = ("d_model", "layers", "heads", "d_ffn", "words", "mem_len", "tokens", "threads")
        bench_records.check_config(record, **dict.fromkeys(sizes, int))
        return cls(record, positions, curves)

    @property
    def title(self):
        return bench_records.machine(self.record)

    @property
    def sizes(self):
        config = self.record["config"]
        return (
            f"{config['layers']} layers, D = {config['d_model']}, {config['heads']} heads, FFN {config['d_ffn']}, "
            f"{config['words']:,} words, memory of the Transformer-XL {config['mem_len']}"
        )


def build(results_dir):
    """Report with a section for each device that was measured. Raises ReportError where no record can be shown."""
    runs, problems = bench_records.load_runs(results_dir, EXPERIMENT, "decode", DecodeRun.from_record)
    part = Part(
        name="bench_decode",
        markdown="\n".join([INTRODUCTION, *map(run_markdown, runs)]),
        brief=lambda width: "\n".join(map(brief, runs)),
        figure=lambda: picture.png(bench_decode_plot.draw, runs, MODELS),
    )
    return Report([part], problems)


def run_markdown(run):
    """One record."""
    record, config = run.record, run.record["config"]
    how = f"{run.sizes}. Median of {config['tokens']} tokens; {bench_records.code(record)}."
    parts = [f"## {run.title}\n", how + "\n"]
    for title, quantity, write in (("Milliseconds a token:", "ms", three_digits), ("State in numbers:", "state", _count)):
        rows = [
            [_span(end, config["tokens"]), *(write(run.curves[model][quantity][i]) for model in MODELS)]
            for i, end in enumerate(run.positions)
        ]
        rows.append(["last / first", *(f"× {_growth(run, model, quantity):.2f}" for model in MODELS)])
        parts += [title + "\n", markdown_table(["tokens", *MODELS.values()], rows, text_columns=1) + "\n"]
    return "\n".join(parts)


def brief(run):
    """How much dearer the last tokens are than the first."""
    lines = [f"{run.title}: milliseconds of the first and the last tokens (up to {run.positions[-1]:,})"]
    for model, name in MODELS.items():
        milliseconds = run.curves[model]["ms"]
        first, last = (three_digits(milliseconds[i]) for i in (0, -1))
        lines.append(f"  {name:20} {first:>8} {last:>8}   × {_growth(run, model, 'ms'):.2f}")
    return "\n".join(lines)


def _growth(run, model, quantity):
    values = run.curves[model][quantity]
    return values[-1] / values[0]


def _span(end, tokens):
    return f"{end - tokens + 1:,} to {end:,}"


def _count(value):
    return f"{value:,}"

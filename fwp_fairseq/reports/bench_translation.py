"""Tokens per second of training and generating translations, from the records of `fwp-bench translation`."""

from dataclasses import dataclass

from fwp_fairseq.reports import bench_records, bench_translation_plot, picture
from fwp_fairseq.reports.report import Part, Report, markdown_table, three_digits

EXPERIMENT = "bench_translation"
FAIRSEQ = "fairseq"
# Order and names of the rows in tables and legends.
ROWS = {
    FAIRSEQ: "fairseq's transformer",
    "transformer": "ours with softmax",
    "linear": "linear (64)",
    "performer_64": "performer (64)",
    "performer_256": "performer (256)",
    "performer_512": "performer (512)",
    "dpfp_256": "DPFP (256)",
    "dpfp_512": "DPFP (512)",
    "elu_delta": "delta (64)",
    "dpfp_256_delta": "delta, DPFP (256)",
}
QUANTITIES = ("ms_per_token", "tokens_per_second")
SIZES = (
    "rounds", "threads", "subwords", "tokens", "sentence", "sentences", "beam", "d_model", "encoder_layers",
    "decoder_layers",
)  # fmt: skip
INTRODUCTION = """\
# Translation: speed of training and of generation

Encoder and decoder of the same sizes on random sentences. Training is a full step: forward and backward pass,
label-smoothed loss, clipping, Adam. Generation is fairseq's beam search with every hypothesis forced to the same target
length; a token's time is that of one step of the search, for all hypotheses of all sentences. All models took a
step and translated to every length in turn, round after round, in one process; times are medians over the rounds, and
of them the ratios are what carries over to other machines. In brackets, the number of features of a head. Built by
`fwp-report bench_translation` from the records of `fwp-bench translation`.

![Time of a token against the length of the translation, and speed of training](../figures/bench_translation.png)
"""


@dataclass
class TranslationRun:
    """One record. training[row]: tokens per second; curves[row]: each of QUANTITIES, a number for each length."""

    record: dict
    lengths: list
    training: dict
    curves: dict

    @classmethod
    def from_record(cls, record):
        """Raises ValueError where a number or a setting is missing or does not fit."""
        bench_records.check_config(record, setting=str, rows=list, **dict.fromkeys(SIZES, int))
        rows = [row for row in ROWS if row in record["config"]["rows"]]
        if FAIRSEQ not in rows:
            raise ValueError(f"config: rows has no {FAIRSEQ}")
        lengths = record["curves"].get("length")
        if not lengths:
            raise ValueError("curves: length is missing or empty")
        training = {row: record["metrics"].get(f"{row}/training_tokens_per_second") for row in rows}
        for row, speed in training.items():
            if not isinstance(speed, (int, float)) or speed <= 0:
                raise ValueError(f"metrics: {row}/training_tokens_per_second must be a number above 0, got {speed!r}")
        curves = {
            row: {name: bench_records.positive_curve(record, f"{row}/{name}", len(lengths)) for name in QUANTITIES}
            for row in rows
        }
        return cls(record, lengths, training, curves)

    @property
    def title(self):
        return f"{bench_records.machine(self.record)}, {self.record['config']['setting']} models"

    def growth(self, row):
        """How much dearer a token of the longest translation is than one of the shortest."""
        times = self.curves[row]["ms_per_token"]
        return times[-1] / times[0]

    def generation_ratio(self, row, place):
        speed = self.curves[row]["tokens_per_second"][place]
        return speed / self.curves[FAIRSEQ]["tokens_per_second"][place]


def build(results_dir):
    """Report with a section for each device and setting. Raises ReportError where no record can be shown."""
    runs, problems = bench_records.load_runs(results_dir, EXPERIMENT, "translation", TranslationRun.from_record)
    part = Part(
        name="bench_translation",
        markdown="\n".join([INTRODUCTION, *map(run_markdown, runs)]),
        brief=lambda width: "\n".join(map(brief, runs)),
        figure=lambda: picture.png(bench_translation_plot.draw, runs, ROWS),
    )
    return Report([part], problems)


def run_markdown(run):
    """One record."""
    config = run.record["config"]
    how = (
        f"{config['encoder_layers']} + {config['decoder_layers']} layers, D = {config['d_model']}, "
        f"{config['subwords']:,} subwords. Training: {config['tokens']:,} target tokens a step; generation: "
        f"{config['sentences']} sentences at once, beam {config['beam']}; sentences of {config['sentence']} tokens. "
        f"{config['rounds']} rounds; {bench_records.code(run.record)}."
    )
    speed_header = ["", "training, tokens/s", "× fairseq"]
    for length in run.lengths:
        speed_header += [f"generation of {length}, tokens/s", "× fairseq"]
    speeds, times = [], []
    for row, curves in run.curves.items():
        cells = [ROWS[row], three_digits(run.training[row]), f"{run.training[row] / run.training[FAIRSEQ]:.2f}"]
        for place, speed in enumerate(curves["tokens_per_second"]):
            cells += [three_digits(speed), f"{run.generation_ratio(row, place):.2f}"]
        speeds.append(cells)
        times.append([ROWS[row], *map(three_digits, curves["ms_per_token"]), f"× {run.growth(row):.2f}"])
    time_header = ["target length", *map(str, run.lengths), "last / first"]
    return "\n".join(
        [
            f"## {run.title}\n",
            how + "\n",
            markdown_table(speed_header, speeds, text_columns=1) + "\n",
            "Milliseconds a token against the length of the translation:\n",
            markdown_table(time_header, times, text_columns=1) + "\n",
        ]
    )


def brief(run):
    """Speeds beside fairseq's, and how a token's time grows with the length."""
    first, last = run.lengths[0], run.lengths[-1]
    lines = [f"{run.title}: × fairseq in training and in generation of {first}; a token's time from {first} to {last}"]
    for row in run.curves:
        training, generation = run.training[row] / run.training[FAIRSEQ], run.generation_ratio(row, 0)
        lines.append(f"  {ROWS[row]:22} {training:6.2f} {generation:6.2f}   × {run.growth(row):.2f}")
    return "\n".join(lines)

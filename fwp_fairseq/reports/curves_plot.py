"""Curves of any trainings on one plot: a colour for each row, a line style for each setting, a line for each seed."""

from dataclasses import dataclass

from fwp_fairseq.reports import picture
from fwp_fairseq.reports.synthetic_plot import COLOURS

LINE_STYLES = ("-", "--", ":", "-.")
WIDE = 20  # largest to smallest number from which a logarithmic axis shows more


@dataclass(frozen=True)
class Curve:
    row: str
    setting: str | None
    seed: int
    status: str
    x: list
    y: list

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.row, self.setting, f"seed{self.seed}")))


def png(curves: list[Curve], title: str, x_name: str, y_name: str) -> bytes:
    """The plot as a file's content. Raises ReportError where matplotlib is not installed."""
    return picture.png(draw, curves, title, x_name, y_name)


def draw(curves, title, x_name, y_name):
    """The same as a matplotlib Figure, on no screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.add_subplot()
    rows = list(dict.fromkeys(curve.row for curve in curves))
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    labelled = set()
    for curve in curves:
        parts = [curve.row, *([curve.setting] if len(settings) > 1 else [])]
        label = ", ".join([*parts, *([curve.status] if curve.status != "finished" else [])])
        axes.plot(
            curve.x,
            curve.y,
            color=COLOURS[rows.index(curve.row) % len(COLOURS)],
            linestyle=LINE_STYLES[settings.index(curve.setting) % len(LINE_STYLES)],
            marker="o",
            markersize=2.5,
            linewidth=1.3,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    values = [value for curve in curves for value in curve.y]
    logarithmic = min(values) > 0 and max(values) > WIDE * min(values)
    if logarithmic:
        axes.set_yscale("log")
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name + (" (log scale)" if logarithmic else ""))
    axes.set_title(title, fontsize=11)
    axes.grid(True, which="both", linewidth=0.4, alpha=0.4)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure

"""Picture of a table of trainings: the validation loss during training, and perplexity by position in the text where
that was measured; a column of panels for each setting."""

import io
import math

from fwp_fairseq.reports.report import ReportError
from fwp_fairseq.reports.synthetic_plot import styles


def png(results):
    """PNG as bytes, the same for the same records. Raises ReportError where matplotlib is not installed."""
    try:
        import matplotlib.style
    except ImportError as error:
        raise ReportError(f"figures need matplotlib ({error}): pip install 'fwp_fairseq[plot]'")
    with matplotlib.style.context("default"):
        file = io.BytesIO()
        draw(results).savefig(file, format="png", dpi=130, metadata={"Software": None})
    return file.getvalue()


def draw(results):
    """The figure as a matplotlib Figure, on no screen."""
    from matplotlib.figure import Figure

    settings = results.settings
    by_position = any("test_position" in record["curves"] for record in results.records)
    lines = 1 + by_position
    figure = Figure(figsize=(2.5 + 6 * len(settings), 1 + 4 * lines), layout="constrained")
    panels = figure.subplots(lines, len(settings), squeeze=False)
    for column, setting in enumerate(settings):
        rows = results.table.rows
        for row, (colour, marker) in zip(rows, styles(len(rows)), strict=True):
            _draw_row(panels[0, column], results, setting, row, colour, marker)
            if by_position:
                _draw_positions(panels[1, column], results, setting, row, colour)
        _name_axes(panels[0, column], "updates", results.table.curve)
        panels[0, column].set_title(results.table.settings[setting], fontsize=10)
        if by_position:
            panels[1, column].set_xscale("log")
            _name_axes(panels[1, column], "position in the test text (tokens)", "perplexity of the span up to there")
    title = results.table.title
    if results.scale != "paper":
        title += f" ({results.scale} scale, not comparable with the paper)"
    figure.suptitle(title, fontsize=11)
    panels[0, -1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure


def _name_axes(axes, x, y):
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(f"{y} (log scale)")
    axes.grid(True, which="both", linewidth=0.4, alpha=0.4)


def _draw_positions(axes, results, setting, row, colour):
    for record in results.runs.get((setting, row), []):
        curves = record["curves"]
        # a span without a finite loss leaves a gap
        spans = curves.get("test_position_loss", [])
        losses = [math.nan if loss is None else math.exp(min(loss, 50)) for loss in spans]
        axes.step(curves.get("test_position", []), losses, where="pre", color=colour, linewidth=1.3)


def _draw_row(axes, results, setting, row, colour, marker):
    """A line a seed; a run that diverged ends in a cross."""
    label = results.table.rows[row]
    for record in results.runs.get((setting, row), []):
        updates = record["curves"].get("updates", [])
        losses = record["curves"].get("valid_loss", [])
        points = [(u, math.exp(min(loss, 50))) for u, loss in zip(updates, losses) if loss is not None]
        x, y = [u for u, _ in points], [p for _, p in points]
        style = {"color": colour, "marker": marker, "markersize": 3, "linewidth": 1.3}
        if record["status"] == "diverged":
            axes.plot(x, y, label=f"{label}, diverged" if label else None, **style)
            # without a validation before it diverged there is no height to put the cross at but the axis
            height, transform = (y[-1], axes.transData) if y else (0.97, axes.get_xaxis_transform())
            axes.plot([record["updates"]], [height], "X", color=colour, markersize=9, transform=transform)
        else:
            axes.plot(x, y, label=label, **style)
        label = None

"""Picture of a language modelling table: validation perplexity during training, a panel for each setting."""

import io
import math

from fwp_fairseq.reports.language_model_results import SETTINGS
from fwp_fairseq.reports.report import ReportError
from fwp_fairseq.reports.synthetic_plot import COLOURS, MARKERS


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
    figure = Figure(figsize=(2.5 + 6 * len(settings), 5), layout="constrained")
    panels = figure.subplots(1, len(settings), squeeze=False)[0]
    for axes, setting in zip(panels, settings):
        for row, colour, marker in zip(results.table.rows, COLOURS, MARKERS):
            _draw_row(axes, results, setting, row, colour, marker)
        axes.set_yscale("log")
        axes.set_title(SETTINGS[setting], fontsize=10)
        axes.set_xlabel("updates")
        axes.set_ylabel("validation perplexity (log scale)")
        axes.grid(True, which="both", linewidth=0.4, alpha=0.4)
    title = results.table.title
    if results.scale != "paper":
        title += f" ({results.scale} scale, not comparable with the paper)"
    figure.suptitle(title, fontsize=11)
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure


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

"""Picture of a synthetic figure: loss against S, ours solid, the authors' published runs dashed."""

import io
import math

from fwp_fairseq.reports.report import ReportError
from fwp_fairseq.reports.synthetic_results import mean

# Okabe and Ito's colours, told apart by colour-blind readers too; their yellow, too pale for a
# line on white, is replaced by grey.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#8C8C8C", "#A6761D")
MARKERS = ("o", "s", "^", "v", "D", "P", "*", "h", "<")
AUTHORS_LINE = {"linestyle": (0, (4, 2)), "linewidth": 1.1, "alpha": 0.75}
NAN_ROW = 0.035  # height of one row of crosses above the axes, as a share of the axes' height


def styles(count):
    """Pairs of colour and marker for so many curves, all different up to 81."""
    return [(COLOURS[i % 9], MARKERS[(i + i // 9) % 9]) for i in range(count)]


def png(results):
    """PNG of the figure as bytes, the same for the same records.

    Raises ReportError where matplotlib is not installed.
    """
    try:
        import matplotlib.style
    except ImportError as error:
        raise ReportError(f"figures need matplotlib ({error}): pip install 'fwp_fairseq[plot]'")

    # A reader's own matplotlibrc must not change the committed picture.
    with matplotlib.style.context("default"):
        file = io.BytesIO()
        # Without the drawing program's version in the file: same picture, same bytes.
        draw(results).savefig(file, format="png", dpi=130, metadata={"Software": None})
    return file.getvalue()


def draw(results):
    """The figure as a matplotlib Figure, on no screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.add_subplot()
    handles = _draw_curves(axes, results)
    nan_rows, nan_handles = _draw_nan_crosses(axes, results)
    _label(axes, results, nan_rows)
    handles += nan_handles + _draw_capacities(axes, results)
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure


def _draw_curves(axes, results):
    """Draw both lines of each curve; returns the legend's entries."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    several_seeds = any(len(outcome.seeds) > 1 for outcome in results.ours.values())
    handles = []
    curves = results.figure.curves
    for curve, (colour, marker) in zip(curves, styles(len(curves)), strict=True):
        ours = {size: o for (row, size), o in sorted(results.ours.items()) if row == curve.row}
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.6}
        axes.plot(list(ours), [_or_nan(mean(o.last)) for o in ours.values()], zorder=3, **style)
        finite = {s: [loss for loss in o.last if loss is not None] for s, o in ours.items()}
        if any(len(losses) > 1 for losses in finite.values()):
            low = [min(losses, default=math.nan) for losses in finite.values()]
            high = [max(losses, default=math.nan) for losses in finite.values()]
            axes.fill_between(list(ours), low, high, color=colour, alpha=0.18, linewidth=0)
        authors = {size: a for (row, size), a in sorted(results.authors.items()) if row == curve.row}
        losses = [_or_nan(run.last) for run in authors.values()]
        axes.plot(list(authors), losses, color=colour, zorder=2, **AUTHORS_LINE)
        handles.append(Line2D([], [], label=curve.label, **style))
    handles.append(Line2D([], [], color="none", label=" "))
    handles.append(Line2D([], [], color="#444444", marker="o", markersize=5, label="ours"))
    if several_seeds:
        handles.append(Patch(color="#444444", alpha=0.18, label="ours, lowest to highest seed"))
    if results.authors:
        handles.append(Line2D([], [], color="#444444", label="authors, as published", **AUTHORS_LINE))
    return handles


def _draw_nan_crosses(axes, results):
    """Mark diverged cells in rows above the axes, one for each curve and source that has any.

    Returns the number of rows and the legend's entries.
    """
    from matplotlib.lines import Line2D

    sources = (
        ("ours", {"marker": "X", "markersize": 6.5, "markeredgewidth": 0}, results.ours),
        ("authors", {"marker": "x", "markersize": 5, "markeredgewidth": 1.1}, results.authors),
    )
    rows, handles = 0, []
    for name, style, outcomes in sources:
        drawn = False
        curves = results.figure.curves
        for curve, (colour, _) in zip(curves, styles(len(curves)), strict=True):
            sizes = [
                size
                for (row, size), outcome in sorted(outcomes.items())
                if row == curve.row and outcome.diverged
            ]
            if not sizes:
                continue
            height = 1 + NAN_ROW * (rows + 0.7)
            axes.plot(
                sizes,
                [height] * len(sizes),
                color=colour,
                linestyle="none",
                transform=axes.get_xaxis_transform(),
                clip_on=False,
                **style,
            )
            rows, drawn = rows + 1, True
        if drawn:
            label = f"diverged (NaN), {name}"
            handles.append(Line2D([], [], color="#444444", linestyle="none", label=label, **style))
    return rows, handles


def _draw_capacities(axes, results):
    """Mark the number of dimensions of each feature map that lies inside the axes."""
    from matplotlib.lines import Line2D

    names = {}
    for curve in results.figure.curves:
        if curve.capacity is not None and curve.capacity <= max(results.sizes):
            feature_map = curve.label.split()[0]
            names.setdefault(curve.capacity, {})[feature_map] = None
    style = {"color": "#777777", "linewidth": 0.9, "linestyle": ":"}
    for capacity, feature_maps in sorted(names.items()):
        axes.axvline(capacity, zorder=1, **style)
        axes.annotate(
            f"{', '.join(feature_maps)}: {capacity}",
            xy=(capacity, 0.985),
            xycoords=axes.get_xaxis_transform(),
            xytext=(3, 0),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize=7.5,
            color="#555555",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
            zorder=4,
        )
    label = "capacity: dimensions of φ,\nd_key = 64; for dpfp 2·d_key·ν"
    return [Line2D([], [], label=label, **style)]


def _label(axes, results, nan_rows):
    title = results.figure.title
    if results.scale != "paper":
        title += f" ({results.scale} scale, not comparable with the paper)"
    # The crosses stand between the axes and the title.
    height_in_points = axes.figure.get_figheight() * 72
    axes.set_title(title, fontsize=11, pad=8 + nan_rows * NAN_ROW * 0.8 * height_in_points)
    axes.set_xlabel("number of keys S")
    axes.set_ylabel("last evaluation loss" + (" (log scale)" if results.figure.log_scale else ""))
    axes.grid(True, linewidth=0.4, alpha=0.4)
    if results.figure.log_scale:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlim(0, max(results.sizes) * 1.03)


def _or_nan(loss):
    return math.nan if loss is None else loss

"""Picture of the length sweeps: time and memory against L on logarithmic axes, a row of two panels a sweep."""

from fwp_fairseq.reports import picture
from fwp_fairseq.reports.bench_results import CONTENDERS
from fwp_fairseq.reports.report import ReportError

# Okabe and Ito's colours, told apart by colour-blind readers too. The colour is the implementation, the line the rule.
STYLES = {
    "sdpa": {"color": "#000000", "marker": "o"},
    "torch": {"color": "#0072B2", "marker": "s"},
    "triton": {"color": "#009E73", "marker": "D"},
    "reference": {"color": "#8C8C8C", "marker": "v"},
    "fla": {"color": "#D55E00", "marker": "^"},
    "fast-transformers": {"color": "#CC79A7", "marker": "P"},
}
LINES = {"softmax": "-", "delta": "-", "sum": (0, (4, 2))}
PANELS = (("ms", "milliseconds, forward + backward"), ("peak_mb", "peak memory in MB"))


def png(runs):
    """PNG as bytes, the same for the same records.

    Raises ReportError where matplotlib is not installed and where no record has a sweep.
    """
    sweeps = [(run, shapes) for run in runs for shapes in run.sweeps()]
    if not sweeps:
        raise ReportError("the figure needs a length sweep; record one with `fwp-bench ops --shapes sweep` or `all`")
    return picture.png(draw, sweeps)


def draw(sweeps):
    """The figure as a matplotlib Figure, on no screen. sweeps: [(run, shapes in the order of L)]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.4 + 4.4 * len(sweeps)), layout="constrained")
    rows = figure.subplots(len(sweeps), len(PANELS), squeeze=False)
    for axes, (run, shapes) in zip(rows, sweeps, strict=True):
        for panel, (quantity, label) in zip(axes, PANELS, strict=True):
            for contender in run.contenders(shapes):
                points = [(shape[2], run.get(contender, shape, quantity)) for shape in shapes]
                lengths, values = zip(*[point for point in points if point[1]])
                panel.plot(
                    lengths,
                    values,
                    label=CONTENDERS[contender],
                    linestyle=LINES[contender[0]],
                    markersize=5,
                    linewidth=1.6,
                    # Those without a fill are the sum rule: told apart in grey print too.
                    markerfacecolor="white" if contender[0] == "sum" else STYLES[contender[1]]["color"],
                    **STYLES[contender[1]],
                )
            _label(panel, shapes, label)
        batch, heads, _, key_dim, value_dim = shapes[0]
        axes[0].set_title(f"{run.title}\nB = {batch}, H = {heads}, Dk = {key_dim}, Dv = {value_dim}", fontsize=9, loc="left")
        axes[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure


def _label(panel, shapes, label):
    lengths = [shape[2] for shape in shapes]
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(lengths, [str(length) for length in lengths])
    panel.set_xlabel("sequence length L")
    panel.set_ylabel(label)
    panel.grid(True, linewidth=0.4, alpha=0.4)

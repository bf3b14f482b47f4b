"""Picture of `fwp-bench training`: words per second and peak memory against the length, a row of two panels a run."""

# Okabe and Ito's colours, told apart by colour-blind readers too.
STYLES = {
    "transformer": {"color": "#000000", "marker": "o"},
    "linear": {"color": "#56B4E9", "marker": "^"},
    "delta": {"color": "#0072B2", "marker": "s"},
    "performer": {"color": "#E69F00", "marker": "v"},
    "performer_delta": {"color": "#D55E00", "marker": "P"},
    "dpfp_sum": {"color": "#CC79A7", "marker": "*"},
    "dpfp_delta": {"color": "#009E73", "marker": "D"},
}
PANELS = (("words_per_second", "words per second"), ("peak_mb", "peak memory in MB"))


def draw(runs, names):
    """The figure as a matplotlib Figure, on no screen. names: {row: name in the legend}."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.6 + 4.4 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), len(PANELS), squeeze=False)
    for axes, run in zip(rows, runs, strict=True):
        for panel, (quantity, label) in zip(axes, PANELS, strict=True):
            for row, curves in run.curves.items():
                panel.plot(run.lengths, curves[quantity], label=names[row], linewidth=1.6, markersize=5, **STYLES[row])
            panel.set_xscale("log", base=2)
            panel.set_xticks(run.lengths, [str(length) for length in run.lengths])
            panel.set_ylim(0, 1.06 * max(max(curves[quantity]) for curves in run.curves.values()))
            panel.set_xlabel("sequence length L, at the same number of words a step")
            panel.set_ylabel(label)
            panel.grid(True, linewidth=0.4, alpha=0.4)
        axes[0].set_title(run.title, fontsize=9, loc="left")
        axes[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure

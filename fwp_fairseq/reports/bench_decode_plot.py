"""Picture of `fwp-bench decode`: time of a token and size of the state against position, on logarithmic axes."""

# Okabe and Ito's colours, told apart by colour-blind readers too.
STYLES = {
    "delta": {"color": "#0072B2", "marker": "s"},
    "linear": {"color": "#56B4E9", "marker": "^"},
    "dpfp_delta": {"color": "#009E73", "marker": "D"},
    "transformer_xl": {"color": "#E69F00", "marker": "v"},
    "softmax": {"color": "#000000", "marker": "o"},
}
PANELS = (("ms", "milliseconds a token"), ("state", "state in numbers"))


def draw(runs, names):
    """The figure as a matplotlib Figure, on no screen; a row of panels a run. names: {model: name in the legend}."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    figure = Figure(figsize=(11, 0.6 + 4.4 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), len(PANELS), squeeze=False)
    for axes, run in zip(rows, runs, strict=True):
        for panel, (quantity, label) in zip(axes, PANELS, strict=True):
            for model, name in names.items():
                panel.plot(
                    run.positions, run.curves[model][quantity], label=name, linewidth=1.6, markersize=5, **STYLES[model]
                )
            panel.set_xscale("log")
            panel.set_yscale("log")
            panel.set_xlabel("position of the token in the text")
            panel.set_ylabel(label)
            panel.grid(True, which="major", linewidth=0.4, alpha=0.4)
        # 60 rather than 6 × 10^1, on an axis that spans little more than a power of ten
        axes[0].yaxis.set_major_formatter(LogFormatter())
        axes[0].yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.6)))
        axes[0].set_title(f"{run.title}\n{run.sizes}", fontsize=9, loc="left")
        axes[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure

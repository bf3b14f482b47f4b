"""Picture of `fwp-bench translation`: time of a token against the length of the translation, and speed of training."""

# Okabe and Ito's colours and some more, told apart by colour-blind readers too; the delta rule is dashed.
STYLES = {
    "fairseq": {"color": "#8C8C8C", "marker": "x"},
    "transformer": {"color": "#000000", "marker": "o"},
    "linear": {"color": "#56B4E9", "marker": "^"},
    "performer_64": {"color": "#E69F00", "marker": "v"},
    "performer_256": {"color": "#D55E00", "marker": "P"},
    "performer_512": {"color": "#A6761D", "marker": "<"},
    "dpfp_256": {"color": "#009E73", "marker": "D"},
    "dpfp_512": {"color": "#CC79A7", "marker": "*"},
    "elu_delta": {"color": "#0072B2", "marker": "s", "linestyle": "--"},
    "dpfp_256_delta": {"color": "#00504A", "marker": "h", "linestyle": "--"},
}


def draw(runs, names):
    """The figure as a matplotlib Figure, on no screen; a row of two panels a run. names: {row: name in the legend}."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 0.6 + 4.4 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), 2, squeeze=False)
    for (times, speeds), run in zip(rows, runs, strict=True):
        for row, curves in run.curves.items():
            style = {"linewidth": 1.6, "markersize": 5, **STYLES[row]}
            times.plot(run.lengths, curves["ms_per_token"], label=names[row], **style)
        times.set_xscale("log", base=2)
        times.set_xticks(run.lengths, [str(length) for length in run.lengths])
        times.set_ylim(0, 1.06 * max(max(curves["ms_per_token"]) for curves in run.curves.values()))
        times.set_xlabel("tokens of the translation")
        times.set_ylabel("milliseconds a token")
        times.grid(True, linewidth=0.4, alpha=0.4)
        times.set_title(run.title, fontsize=9, loc="left")
        colours = [STYLES[row]["color"] for row in run.training]
        speeds.barh([names[row] for row in run.training], run.training.values(), color=colours)
        speeds.invert_yaxis()
        speeds.set_xlabel("target tokens per second of training")
        speeds.grid(True, axis="x", linewidth=0.4, alpha=0.4)
        handles, labels = times.get_legend_handles_labels()
        speeds.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure

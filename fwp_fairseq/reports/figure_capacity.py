"""Figure "capacity": retrieval loss against the number of associations, sum rule (setting 1)."""

from fwp_fairseq.reports.synthetic import build_synthetic, synthetic_cells
from fwp_fairseq.reports.synthetic_results import Curve, SyntheticFigure

FIGURE = SyntheticFigure(
    name="figure_capacity",
    authors_name="capacity",
    title="Capacity: S distinct keys, sum rule",
    setting="S key-value pairs without repetition, written by the sum rule (softmax: attention).",
    curves=(
        Curve("softmax", "softmax"),
        Curve("elu", "elu", capacity=64),
        Curve("dpfp_1", "dpfp-1", capacity=128),
        Curve("dpfp_2", "dpfp-2", capacity=256),
        Curve("dpfp_3", "dpfp-3", capacity=384),
        Curve("favor_64", "favor-64", by_shape=True),
        Curve("favor_128", "favor-128", by_shape=True),
        Curve("favor_512", "favor-512", by_shape=True),
    ),
    log_scale=False,
    longer_training=False,
)


def build(results_dir):
    return build_synthetic(results_dir, FIGURE)


def cells(results_dir):
    return synthetic_cells(results_dir, FIGURE)

"""Figure "update rule": retrieval of overwritten values, three update rules (setting 2)."""

from fwp_fairseq.reports.synthetic import build_synthetic, synthetic_cells
from fwp_fairseq.reports.synthetic_results import Curve, SyntheticFigure

FIGURE = SyntheticFigure(
    name="figure_update_rule",
    authors_name="update_rule",
    title="Update rule: 2S pairs drawn with replacement from S keys",
    setting=(
        "Sequences of 2S pairs whose keys are drawn with replacement from S; the target is the "
        "last value written to the queried key. Evaluated on sequences of S pairs."
    ),
    curves=(
        Curve("dpfp_1_sum", "dpfp-1 sum", capacity=128),
        Curve("dpfp_1_delta", "dpfp-1 delta", capacity=128),
        Curve("dpfp_1_fwm", "dpfp-1 fwm", capacity=128),
        Curve("tanh_fwm", "tanh fwm", capacity=64, by_shape=True),
        Curve("dpfp_2_delta", "dpfp-2 delta", capacity=256),
        Curve("elu_delta", "elu delta", capacity=64),
        Curve("favor_64_delta", "favor-64 delta", by_shape=True),
        Curve("favor_128_delta", "favor-128 delta", by_shape=True),
    ),
    log_scale=True,
    longer_training=True,
)


def build(results_dir):
    return build_synthetic(results_dir, FIGURE)


def cells(results_dir):
    return synthetic_cells(results_dir, FIGURE)

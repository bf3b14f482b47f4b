"""Tensor functions of fast weight programmers: feature maps and update rules. Imports only torch."""

from fwp_fairseq.ops.fast_weights import (
    BACKENDS,
    fast_weight_delta,
    fast_weight_step,
    fast_weight_sum,
)
from fwp_fairseq.ops.feature_maps import (
    dpfp_feature_map,
    elu_feature_map,
    favor_feature_map,
    favor_random_matrix,
    sum_normalize,
    tanh_feature_map,
)
from fwp_fairseq.ops.fwm import fast_weight_fwm
from fwp_fairseq.ops.normalisation import (
    normalized_fast_weight_delta,
    normalized_fast_weight_step,
    normalized_fast_weight_sum,
)
from fwp_fairseq.ops.whole_sequence import read_normalized, read_state, read_whole_sequence, sum_over_sequence

__all__ = [
    "BACKENDS",
    "dpfp_feature_map",
    "elu_feature_map",
    "fast_weight_delta",
    "fast_weight_fwm",
    "fast_weight_step",
    "fast_weight_sum",
    "favor_feature_map",
    "favor_random_matrix",
    "normalized_fast_weight_delta",
    "normalized_fast_weight_step",
    "normalized_fast_weight_sum",
    "read_normalized",
    "read_state",
    "read_whole_sequence",
    "sum_normalize",
    "sum_over_sequence",
    "tanh_feature_map",
]

"""Torch modules built from `fwp_fairseq.ops`. Nothing here needs fairseq but the part for its translation models."""

from fwp_fairseq.modules.fast_weight_attention import FastWeightAttention
from fwp_fairseq.modules.feature_map import register_feature_map
from fwp_fairseq.modules.update_rules import register_update_rule

__all__ = ["FastWeightAttention", "register_feature_map", "register_update_rule"]

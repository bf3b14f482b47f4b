"""The one-layer model of the synthetic retrieval experiments (section 6.1), as the authors' code has it.

Keys and queries share one embedding table; the key projection and beta see [one-hot value; key embedding], the query
projection the key embedding alone. One head, values one-hot, no output projection. The read is either softmax
attention or fast weights named by their parts: `feature_map` and `update_rule`.
"""

from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from torch import nn

from fwp_fairseq.modules.fast_weight_read import (
    delta_read_weights,
    softmax_read_weights,
    sum_read_weights,
    sum_weights,
)
from fwp_fairseq.modules.feature_map import registered_maps
from fwp_fairseq.modules.one_query_read import dpfp_scores, favor_scores
from fwp_fairseq.ops import (
    dpfp_feature_map,
    elu_feature_map,
    favor_feature_map,
    favor_random_matrix,
    fast_weight_fwm,
    sum_normalize,
    tanh_feature_map,
)

ATTENTIONS = ("softmax", "fast_weights")
FEATURE_MAPS = ("elu", "dpfp", "favor", "tanh")
UPDATE_RULES = ("sum", "delta", "fwm")
EPS = 1e-6  # of the authors' synthetic code: in the sum rule's denominator and in the delta rule's query sum


@dataclass
class RetrievalModelConfig(FairseqDataclass):
    attention: ChoiceEnum(ATTENTIONS) = field(default="fast_weights", metadata={"help": "how values are retrieved"})
    feature_map: str = field(
        default="elu", metadata={"help": "of keys and queries: elu, dpfp, favor, tanh, or a registered one"}
    )
    update_rule: ChoiceEnum(UPDATE_RULES) = field(default="sum", metadata={"help": "how the fast weights are written"})
    nu: Optional[int] = field(default=None, metadata={"help": "dpfp only: phi has 2 * d_key * nu components"})
    m: Optional[int] = field(default=None, metadata={"help": "favor only: phi has 2 * m components"})
    d_key: int = field(default=64, metadata={"help": "size of keys and queries ahead of the feature map"})


@register_model("retrieval", dataclass=RetrievalModelConfig)
class RetrievalModel(BaseFairseqModel):
    """Predicts the value that belongs to a key, after reading a sequence of S key-value pairs.

    Args:
        cfg: the parts; a missing or unfit one is a `ValueError` that names it
        symbols: number of keys, and of values (S)
    """

    def __init__(self, cfg: RetrievalModelConfig, symbols: int):
        super().__init__()
        check_parts(cfg)
        self.cfg = cfg
        self.symbols = symbols
        d_embedding = int(1.1 * 2 * symbols)
        self.embedding = nn.Embedding(symbols, d_embedding)  # N(0, 1)
        self.key_projection = nn.Linear(symbols + d_embedding, cfg.d_key)
        self.query_projection = nn.Linear(d_embedding, cfg.d_key)
        self.beta_projection = nn.Linear(symbols + d_embedding, 1) if cfg.update_rule != "sum" else None
        for projection in (self.key_projection, self.query_projection):
            if cfg.attention == "softmax":
                nn.init.xavier_uniform_(projection.weight)
            else:
                nn.init.uniform_(projection.weight, -(cfg.d_key**-0.5), cfg.d_key**-0.5)
        self.num_updates = 0

    @classmethod
    def build_model(cls, cfg, task):
        return cls(cfg, task.cfg.num_keys)

    def set_num_updates(self, num_updates):
        self.num_updates = num_updates

    @property
    def redraws_features(self) -> bool:
        """FAVOR+ draws new random features at every forward, evaluation included."""
        return self.cfg.attention == "fast_weights" and self.cfg.feature_map == "favor"

    @property
    def d_phi(self) -> int:
        """Size of a key after the feature map."""
        cfg = self.cfg
        if cfg.feature_map in registered_maps:
            return registered_maps[cfg.feature_map].d_phi(cfg.d_key)
        return {"dpfp": 2 * cfg.d_key * (cfg.nu or 0), "favor": 2 * (cfg.m or 0)}.get(cfg.feature_map, cfg.d_key)

    def state_size(self, length: int) -> int:
        """Numbers kept of a sequence: the fast weights (and z where the output is normalised), or keys and values."""
        if self.cfg.attention == "softmax":
            return length * (self.cfg.d_key + self.symbols)
        return self.d_phi * (self.symbols + (self.cfg.update_rule == "sum"))

    def features(self):
        """The feature map of this forward, as a function of (..., d_key)."""
        cfg = self.cfg
        if cfg.feature_map == "dpfp":
            return lambda x: dpfp_feature_map(x, cfg.nu)
        if cfg.feature_map == "favor":
            omega = self.random_features()
            return lambda x: favor_feature_map(x, omega)
        if cfg.feature_map in registered_maps:
            return registered_maps[cfg.feature_map].function
        return elu_feature_map if cfg.feature_map == "elu" else tanh_feature_map

    def random_features(self):
        return favor_random_matrix(self.cfg.d_key, self.cfg.m, device=self.embedding.weight.device)

    def project(self, keys, values, queries):
        """Keys (B, L), values (B, L), queries (B, Q), all int64 -> k (B, L, d), q (B, Q, d), beta (B, L) or None.

        A projection of a one-hot vector is a column of its matrix, and there are only S different keys: each
        symbol is projected once and looked up.
        """
        table = self.embedding.weight
        of_value, of_key = self.key_projection.weight.split([self.symbols, table.shape[1]], dim=1)
        by_key = F.linear(table, of_key, self.key_projection.bias)
        k = F.embedding(keys, by_key) + F.embedding(values, of_value.t())
        q = F.embedding(queries, self.query_projection(table))
        if self.beta_projection is None:
            return k, q, None
        of_value, of_key = self.beta_projection.weight.split([self.symbols, table.shape[1]], dim=1)
        by_key = F.linear(table, of_key, self.beta_projection.bias)
        return k, q, torch.sigmoid(by_key[:, 0][keys] + of_value[0][values])

    def forward(self, keys, values, queries):
        """Predicted values (B, Q, S) for the keys in `queries` after the pairs (`keys`, `values`)."""
        k, q, beta = self.project(keys, values, queries)
        if self.cfg.attention == "softmax":
            return self.gather(softmax_read_weights(k, q), values)
        one_query = self.cfg.update_rule == "sum" and q.shape[1] == 1  # in training: the features need not be formed
        if one_query and self.cfg.feature_map == "dpfp":
            return self.gather(sum_weights(dpfp_scores(k, q[:, 0], self.cfg.nu), EPS).unsqueeze(1), values)
        if one_query and self.cfg.feature_map == "favor":
            return self.gather(sum_weights(favor_scores(k, q[:, 0], self.random_features()), EPS).unsqueeze(1), values)
        phi = self.features()
        phi_k, phi_q = phi(k), phi(q)
        if self.cfg.update_rule == "sum":
            return self.gather(sum_read_weights(phi_k, phi_q, EPS), values)
        if self.cfg.update_rule == "delta":
            phi_k, phi_q = sum_normalize(phi_k), sum_normalize(phi_q, EPS)
            return self.gather(delta_read_weights(phi_k, phi_q, beta), values)
        one_hot = F.one_hot(values, self.symbols).to(phi_k.dtype)
        state = fast_weight_fwm(phi_k, one_hot, beta)
        return F.layer_norm(phi_q @ state, (self.symbols,))

    def gather(self, weights, values):
        """Sum of the one-hot values (B, L) with weights (B, Q, L) -> (B, Q, S)."""
        out = weights.new_zeros(*weights.shape[:2], self.symbols)
        return out.scatter_add(2, values.unsqueeze(1).expand_as(weights), weights)


def check_parts(cfg) -> None:
    """`ValueError` naming the field, the value and what is allowed, where the parts do not make a model."""
    feature_maps = (*FEATURE_MAPS, *registered_maps)
    for name, allowed in (("attention", ATTENTIONS), ("feature_map", feature_maps), ("update_rule", UPDATE_RULES)):
        if getattr(cfg, name) not in allowed:
            raise ValueError(f"model.{name}: got {getattr(cfg, name)!r}, allowed are {', '.join(allowed)}")
    for name, feature_map in (("nu", "dpfp"), ("m", "favor")):
        value = getattr(cfg, name)
        needed = cfg.attention == "fast_weights" and cfg.feature_map == feature_map
        if needed and (value is None or value < 1):
            raise ValueError(f"model.{name}: feature map {feature_map} needs an integer >= 1, got {value}")
        if not needed and value is not None:
            raise ValueError(f"model.{name}: only feature map {feature_map} has it, got {value}; leave it out")
    if cfg.attention == "softmax" and cfg.update_rule != "sum":
        raise ValueError(
            f"model.update_rule: only model.attention=fast_weights has it, got {cfg.update_rule}; leave it out"
        )
    if cfg.d_key < 1:
        raise ValueError(f"model.d_key: must be >= 1, got {cfg.d_key}")
    if cfg.feature_map == "tanh" and cfg.update_rule != "fwm":
        raise ValueError(
            f"model.feature_map: tanh can be negative, so only update rule fwm takes it, got {cfg.update_rule}"
        )

"""The paper's language models (section 6.3): a post-norm Transformer decoder whose self-attention is named by its parts.

`model._name=fwp_lm attention=fast_weights feature_map=elu update_rule=delta`, or `attention=softmax` for the baseline.
"""

from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model

from fwp_fairseq.models.decoder import FIRST_SYMBOL, LanguageModel, PostNormDecoder
from fwp_fairseq.modules.fast_weight_attention import FastWeightAttention
from fwp_fairseq.modules.positions import sinusoidal_positions
from fwp_fairseq.modules.softmax_attention import SoftmaxAttention
from fwp_fairseq.modules.update_rules import ATTENTION_NORMALIZATIONS
from fwp_fairseq.ops import BACKENDS

ATTENTIONS = ("softmax", "fast_weights")


@dataclass
class LanguageModelConfig(FairseqDataclass):
    attention: ChoiceEnum(ATTENTIONS) = field(default="fast_weights", metadata={"help": "kind of self-attention"})
    feature_map: str = field(default="elu", metadata={"help": "of keys and queries: elu, dpfp, favor, or a registered one"})
    update_rule: str = field(default="delta", metadata={"help": "how the fast weights are written: sum, delta, or a registered one"})
    sum_normalization: bool = field(
        default=True, metadata={"help": "divide phi(k) and phi(q) by the sum of their components"}
    )
    attention_normalization: ChoiceEnum(ATTENTION_NORMALIZATIONS) = field(
        default="none", metadata={"help": "divide what is read by z . phi(q): not, at the output, or at both reads"}
    )
    nu: Optional[int] = field(default=None, metadata={"help": "dpfp only: d_phi is 2 * d_head * nu (default 1)"})
    m: Optional[int] = field(default=None, metadata={"help": "favor only: d_phi is 2 * m (default d_head / 2)"})
    positional_encoding: bool = field(default=True, metadata={"help": "add sinusoidal positions to the embedding"})
    d_model: int = field(default=256, metadata={"help": "size of embeddings and hidden states"})
    layers: int = field(default=16, metadata={"help": "number of layers"})
    heads: int = field(default=8, metadata={"help": "attention heads; must divide d_model"})
    d_ffn: int = field(default=2048, metadata={"help": "hidden size of the feed-forward blocks"})
    dropout: float = field(default=0.1, metadata={"help": "everywhere but on attention"})
    cutoffs: str = field(
        default="", metadata={"help": "where the clusters of the adaptive softmax begin, as 20000,40000; none: plain softmax"}
    )
    backend: ChoiceEnum(BACKENDS) = field(default="auto", metadata={"help": "of the fast weight rules"})


@register_model("fwp_lm", dataclass=LanguageModelConfig)
class FastWeightLanguageModel(LanguageModel):
    """A language model over a fairseq dictionary; `ValueError` naming the field where the parts do not fit."""

    def __init__(self, cfg: LanguageModelConfig, dictionary):
        super().__init__(cfg, LanguageModelDecoder(cfg, dictionary))

    @property
    def state_is_bounded(self) -> bool:
        return self.cfg.attention != "softmax"

    def state_size(self, context: int) -> int:
        """Numbers kept of one sequence: the fast weights (and z), or the keys and values of `context` positions."""
        if self.cfg.attention == "softmax":
            return 2 * context * self.cfg.d_model * self.cfg.layers
        return sum(layer.attention.state_size for layer in self.decoder.layers)


class LanguageModelDecoder(PostNormDecoder):
    """Embedding times sqrt(d_model), positions, the layers, and the tied adaptive output."""

    def __init__(self, cfg: LanguageModelConfig, dictionary):
        if cfg.positional_encoding and cfg.d_model % 2:
            raise ValueError(f"d_model: sinusoidal positions need an even number, got {cfg.d_model}")
        super().__init__(cfg, dictionary, build_attention)
        self.positional_encoding = cfg.positional_encoding

    @property
    def goes_on(self):
        # positions are counted down to the end of what is read
        return not self.positional_encoding

    def positions(self, tokens):
        """(length, d_model), or (batch, length, d_model) where rows end in padding: each counts to its own last token."""
        length = tokens.shape[1]
        countdown = sinusoidal_positions(length, self.embedding.embedding_dim, tokens.device)
        if not (tokens[:, -1:] < FIRST_SYMBOL).any():
            return countdown
        padding = (tokens >= FIRST_SYMBOL).flip(1).int().argmax(1, keepdim=True)
        place = torch.arange(length, device=tokens.device) + padding
        return countdown[place.clamp(max=length - 1)]

    def read(self, tokens, state):
        x = self.embed(tokens)
        if self.positional_encoding:
            x = x + self.positions(tokens).to(x.dtype)
        x, after = self.drop(x), []
        for layer, before in zip(self.layers, state or [None] * len(self.layers)):
            x, kept = layer(x, before)
            after.append(kept)
        return self.drop(x), after


def build_attention(cfg):
    if cfg.attention == "softmax":
        return SoftmaxAttention(cfg.d_model, cfg.heads)
    return FastWeightAttention(
        cfg.d_model,
        cfg.heads,
        feature_map=str(cfg.feature_map),
        update_rule=str(cfg.update_rule),
        sum_normalization=cfg.sum_normalization,
        attention_normalization=str(cfg.attention_normalization),
        nu=cfg.nu,
        m=cfg.m,
        backend=str(cfg.backend),
    )

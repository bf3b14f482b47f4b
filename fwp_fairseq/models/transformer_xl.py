"""Transformer-XL (Dai et al. 2019) in the frame of the other language models: what they are compared with when the
context is unbounded.

`model._name=fwp_transformer_xl mem_len=384 clamp_len_eval=384`. The length of a segment is the task's.
"""

from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from torch import nn

from fwp_fairseq.models.decoder import INIT_STD, LanguageModel, PostNormDecoder
from fwp_fairseq.modules.positions import sinusoidal_positions
from fwp_fairseq.modules.relative_attention import RelativeAttention, Segment, visible_keys


@dataclass
class TransformerXLConfig(FairseqDataclass):
    mem_len: int = field(default=384, metadata={"help": "positions remembered from segment to segment; 0: none"})
    mem_len_eval: Optional[int] = field(default=None, metadata={"help": "the same in evaluation (default: mem_len)"})
    clamp_len: int = field(
        default=-1, metadata={"help": "distances beyond it get the position of this distance; -1: none do"}
    )
    clamp_len_eval: Optional[int] = field(default=None, metadata={"help": "the same in evaluation (default: clamp_len)"})
    same_length: bool = field(
        default=False, metadata={"help": "every position sees the mem_len last ones, itself among them, and no more"}
    )
    d_model: int = field(default=256, metadata={"help": "size of embeddings and hidden states; even"})
    layers: int = field(default=16, metadata={"help": "number of layers"})
    heads: int = field(default=8, metadata={"help": "attention heads; must divide d_model"})
    d_ffn: int = field(default=2048, metadata={"help": "hidden size of the feed-forward blocks"})
    dropout: float = field(default=0.1, metadata={"help": "everywhere but on attention"})
    cutoffs: str = field(
        default="", metadata={"help": "where the clusters of the adaptive softmax begin, as 20000,40000; none: plain softmax"}
    )


@register_model("fwp_transformer_xl", dataclass=TransformerXLConfig)
class TransformerXL(LanguageModel):
    """A Transformer-XL over a fairseq dictionary; `ValueError` naming the field that does not fit."""

    def __init__(self, cfg: TransformerXLConfig, dictionary):
        check_config(cfg)
        super().__init__(cfg, TransformerXLDecoder(cfg, dictionary))

    def state_size(self, context: int) -> int:
        """Keys and values of a segment of `context` positions and of the memory in evaluation, in numbers."""
        return 2 * (context + self.decoder.mem_len_eval) * self.cfg.d_model * self.cfg.layers


class TransformerXLDecoder(PostNormDecoder):
    """Embedding times sqrt(d_model), layers that know distances only, and the tied adaptive output."""

    def __init__(self, cfg: TransformerXLConfig, dictionary):
        super().__init__(cfg, dictionary, lambda cfg: RelativeAttention(cfg.d_model, cfg.heads))
        self.mem_len = cfg.mem_len
        self.mem_len_eval = cfg.mem_len if cfg.mem_len_eval is None else cfg.mem_len_eval
        self.goes_on = self.mem_len_eval > 0  # what remembers nothing must read its segment anew for every symbol
        self.clamp_len = cfg.clamp_len
        self.clamp_len_eval = cfg.clamp_len if cfg.clamp_len_eval is None else cfg.clamp_len_eval
        self.same_length = cfg.same_length
        self.r_w_bias = nn.Parameter(torch.empty(cfg.heads, cfg.d_model // cfg.heads))
        self.r_r_bias = nn.Parameter(torch.empty(cfg.heads, cfg.d_model // cfg.heads))
        for bias in (self.r_w_bias, self.r_r_bias):
            nn.init.normal_(bias, 0.0, INIT_STD)

    def read(self, tokens, state):
        """The state is the last inputs of each layer, (B, up to mem_len, d_model), detached."""
        mem_len = self.mem_len if self.training else self.mem_len_eval
        clamp_len = self.clamp_len if self.training else self.clamp_len_eval
        x = self.drop(self.embed(tokens))
        if state is None:
            state = [x[:, :0]] * len(self.layers)
        check_memories(state, x, mem_len)
        length, memory_length = x.shape[1], state[0].shape[1]
        sinusoids = sinusoidal_positions(memory_length + length, x.shape[2], x.device, clamp_len)
        segment = Segment(
            sinusoids=self.drop(sinusoids.to(x.dtype)),
            visible=visible_keys(length, memory_length, mem_len if self.same_length else None, x.device),
            r_w_bias=self.r_w_bias,
            r_r_bias=self.r_r_bias,
            mem_len=mem_len,
        )
        after = []
        for layer, memory in zip(self.layers, state):
            x, memory = layer(x, memory, segment)
            after.append(memory)
        return self.drop(x), after


def check_config(cfg):
    """`ValueError` naming the field, the value and what is allowed."""
    for name in ("mem_len", "mem_len_eval"):
        value = getattr(cfg, name)
        if value is None:
            continue
        if value < 0:
            raise ValueError(f"{name}: must be >= 0, got {value}; 0 remembers nothing")
        if value == 0 and cfg.same_length:
            raise ValueError(f"{name}: with same_length it is what a position sees, so >= 1, got 0; or same_length=false")
    for name in ("clamp_len", "clamp_len_eval"):
        value = getattr(cfg, name)
        if value is not None and value != -1 and value < 1:
            raise ValueError(f"{name}: must be >= 1, or -1 for no clamping, got {value}")
    if cfg.layers < 1:
        raise ValueError(f"layers: must be >= 1, got {cfg.layers}")
    if cfg.d_model % 2:
        raise ValueError(f"d_model: sinusoidal positions need an even number, got {cfg.d_model}")


def check_memories(state, x, mem_len):
    """`ValueError` unless the memories are those of the batch of x (B, L, d_model), all of one length <= mem_len."""
    kept = state[0].shape[1] if isinstance(state[0], torch.Tensor) and state[0].dim() == 3 else mem_len
    expected = (x.shape[0], min(kept, mem_len), x.shape[2])
    for number, memory in enumerate(state):
        got = tuple(memory.shape) if isinstance(memory, torch.Tensor) else type(memory).__name__
        if got != expected:
            raise ValueError(
                f"state: expected a memory of shape {expected} for layer {number}, got {got}; batch and d_model must "
                f"be those of the input, and mem_len={mem_len} is the most it may hold"
            )
        if (memory.dtype, memory.device) != (x.dtype, x.device):
            raise ValueError(
                f"state: expected a memory of {x.dtype} on {x.device} for layer {number}, got {memory.dtype} on "
                f"{memory.device}"
            )

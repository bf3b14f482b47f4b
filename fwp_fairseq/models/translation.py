"""The paper's translation models (section 6.2): fairseq's Transformer whose three attentions are named by their parts.

`model._name=fwp_translation feature_map=dpfp nu=2`; an attention that is `softmax` is fairseq's own, unchanged.
"""

import logging
from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.models.transformer.transformer_config import DecoderConfig, EncDecBaseConfig, QuantNoiseConfig
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase

from fwp_fairseq.models.pretrained import FromDataFolder
from fwp_fairseq.modules.fast_weight_attention import check_heads
from fwp_fairseq.modules.translation.linear_attention import CausalAttention, LinearAttention, WholeSequenceAttention
from fwp_fairseq.modules.update_rules import ATTENTION_NORMALIZATIONS, find_rule
from fwp_fairseq.ops import BACKENDS

logger = logging.getLogger(__name__)

ATTENTIONS = ("linear", "softmax")
ATTENTION_FIELDS = ("encoder_attention", "decoder_attention", "cross_attention")


@dataclass
class TranslationModelConfig(FairseqDataclass):
    encoder_attention: ChoiceEnum(ATTENTIONS) = field(default="linear", metadata={"help": "of the source to itself"})
    decoder_attention: ChoiceEnum(ATTENTIONS) = field(default="linear", metadata={"help": "of the target to itself"})
    cross_attention: ChoiceEnum(ATTENTIONS) = field(default="linear", metadata={"help": "of the target to the source"})
    feature_map: str = field(
        default="elu", metadata={"help": "feature map of keys and queries, wherever attention is linear"}
    )
    nu: Optional[int] = field(default=None, metadata={"help": "dpfp only, and needed there: d_phi is 2 * d_head * nu"})
    m: Optional[int] = field(default=None, metadata={"help": "favor only, and needed there: d_phi is 2 * m"})
    update_rule: str = field(
        default="sum", metadata={"help": "how the decoder's self-attention is written; the other two are sums"}
    )
    sum_normalization: bool = field(
        default=False,
        metadata={"help": "in the decoder's self-attention, divide phi(k) and phi(q) by the sum of their components"},
    )
    attention_normalization: ChoiceEnum(ATTENTION_NORMALIZATIONS) = field(
        default="output",
        metadata={"help": "in the decoder's self-attention, divide reads by z . phi(q); the other two always do"},
    )
    backend: ChoiceEnum(BACKENDS) = field(default="auto", metadata={"help": "of the fast weight rules"})
    d_model: int = field(default=512, metadata={"help": "size of embeddings and hidden states"})
    encoder_layers: int = field(default=6, metadata={"help": "number of encoder layers"})
    decoder_layers: int = field(default=6, metadata={"help": "number of decoder layers"})
    heads: int = field(default=8, metadata={"help": "attention heads; must divide d_model"})
    d_ffn: int = field(default=2048, metadata={"help": "hidden size of the feed-forward blocks"})
    dropout: float = field(default=0.1, metadata={"help": "of embeddings and after each block"})
    activation_dropout: float = field(default=0.0, metadata={"help": "after the ReLU of the feed-forward blocks"})
    share_all_embeddings: bool = field(
        default=True, metadata={"help": "one matrix for source, target and output; needs a joint dictionary"}
    )
    max_source_positions: int = field(default=1024, metadata={"help": "tokens of the longest source"})
    max_target_positions: int = field(default=1024, metadata={"help": "tokens of the longest target"})


@register_model("fwp_translation", dataclass=TranslationModelConfig)
class FastWeightTranslationModel(FromDataFolder, TransformerModelBase):
    """Encoder and decoder of fairseq's post-norm Transformer; `ValueError` naming the field where parts do not fit."""

    hub_tokenizer = "fwp_moses"

    @classmethod
    def add_args(cls, parser):
        gen_parser_from_dataclass(parser, TranslationModelConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg, task):
        check_parts(cfg)
        model = super().build_model(transformer_config(cfg), task)
        logger.info("fwp_translation: %s parameters", f"{model.parameter_count:,}")
        return model

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return Encoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return Decoder(cfg, tgt_dict, embed_tokens)

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def state_size(self, source_length: int, target_length: int) -> int:
        """Numbers the decoder keeps of one sentence: fast weights (and z), or the keys and values of softmax."""
        size = 0
        for layer in self.decoder.layers:
            for attention, length in ((layer.self_attn, target_length), (layer.encoder_attn, source_length)):
                linear = isinstance(attention, LinearAttention)
                size += attention.state_size if linear else 2 * length * attention.embed_dim
        return size


class EncoderLayer(TransformerEncoderLayerBase):
    def build_self_attention(self, embed_dim, cfg):
        if cfg.parts.encoder_attention == "softmax":
            return super().build_self_attention(embed_dim, cfg)
        return WholeSequenceAttention(embed_dim, cfg.encoder.attention_heads, **feature_map_of(cfg.parts))


class DecoderLayer(TransformerDecoderLayerBase):
    def build_self_attention(self, embed_dim, cfg, **bias_options):
        if cfg.parts.decoder_attention == "softmax":
            return super().build_self_attention(embed_dim, cfg, **bias_options)
        return CausalAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            update_rule=str(cfg.parts.update_rule),
            sum_normalization=cfg.parts.sum_normalization,
            attention_normalization=str(cfg.parts.attention_normalization),
            backend=str(cfg.parts.backend),
            **feature_map_of(cfg.parts),
        )

    def build_encoder_attention(self, embed_dim, cfg):
        if cfg.parts.cross_attention == "softmax":
            return super().build_encoder_attention(embed_dim, cfg)
        return WholeSequenceAttention(embed_dim, cfg.decoder.attention_heads, **feature_map_of(cfg.parts))


class Encoder(TransformerEncoderBase):
    def build_encoder_layer(self, cfg):
        return EncoderLayer(cfg)


class Decoder(TransformerDecoderBase):
    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return DecoderLayer(cfg, no_encoder_attn)

    def extract_features(
        self,
        prev_output_tokens,
        encoder_out,
        incremental_state=None,
        full_context_alignment=False,
        alignment_layer=None,
        alignment_heads=None,
    ):
        """As fairseq's. `ValueError` where something is asked for that only attention weights could answer."""
        parts = self.cfg.parts
        if full_context_alignment and parts.decoder_attention == "linear":
            raise ValueError("full_context_alignment: with decoder_attention=linear the decoder is always causal")
        if (alignment_layer, alignment_heads) != (None, None) and parts.cross_attention == "linear":
            raise ValueError("alignment: cross_attention=linear forms no attention weights to align by")
        return super().extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
        )


def feature_map_of(parts) -> dict:
    return {"feature_map": str(parts.feature_map), "nu": parts.nu, "m": parts.m}


def transformer_config(cfg) -> TransformerConfig:
    """fairseq's nested configuration for our flat one, which goes along as its `parts`."""
    sizes = {"embed_dim": cfg.d_model, "ffn_embed_dim": cfg.d_ffn, "attention_heads": cfg.heads}
    config = TransformerConfig(
        encoder=EncDecBaseConfig(layers=cfg.encoder_layers, **sizes),
        decoder=DecoderConfig(layers=cfg.decoder_layers, **sizes),
        quant_noise=QuantNoiseConfig(),
        dropout=cfg.dropout,
        activation_dropout=cfg.activation_dropout,
        share_all_embeddings=cfg.share_all_embeddings,
        max_source_positions=cfg.max_source_positions,
        max_target_positions=cfg.max_target_positions,
    )
    config.parts = cfg
    return config


def check_parts(cfg) -> None:
    """`ValueError` naming the field, the value and what is allowed, where the parts do not make a model."""
    check_heads(cfg.d_model, cfg.heads)
    for name in ATTENTION_FIELDS:
        if getattr(cfg, name) not in ATTENTIONS:
            raise ValueError(f"{name}: got {getattr(cfg, name)!r}, allowed are {', '.join(ATTENTIONS)}")
    for name in ("encoder_layers", "decoder_layers", "d_ffn"):
        if getattr(cfg, name) < 1:
            raise ValueError(f"{name}: must be >= 1, got {getattr(cfg, name)}")
    if all(getattr(cfg, name) == "softmax" for name in ATTENTION_FIELDS):
        return
    find_rule(str(cfg.update_rule), str(cfg.attention_normalization))
    for name, owner in (("nu", "dpfp"), ("m", "favor")):
        if cfg.feature_map == owner and getattr(cfg, name) is None:
            raise ValueError(f"{name}: feature map {owner} needs an integer >= 1, got none")

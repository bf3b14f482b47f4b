"""What the language models have in common: the tied embedding and adaptive output, post-norm layers round an attention
that each model brings along, and the authors' initialisation."""

import logging

import torch.nn.functional as F
from fairseq.models import FairseqLanguageModel
from torch import nn

from fwp_fairseq.models.pretrained import FromDataFolder
from fwp_fairseq.models.stateful_decoder import StatefulDecoder
from fwp_fairseq.modules.adaptive_output import AdaptiveOutput

logger = logging.getLogger(__name__)

INIT_STD = 0.02
# <s> and <pad> head fairseq's dictionaries and never occur in the text; they get no embedding and no probability.
FIRST_SYMBOL = 2


class LanguageModel(FromDataFolder, FairseqLanguageModel):
    """A decoder in fairseq's frame. Models say by `state_size(context)` how many numbers they keep of one sequence
    that is read `context` tokens at a time."""

    def __init__(self, cfg, decoder):
        super().__init__(decoder)
        self.cfg = cfg

    @classmethod
    def build_model(cls, cfg, task):
        model = cls(cfg, task.target_dictionary)
        context = getattr(task.args, "tokens_per_sample_eval", None) or task.args.tokens_per_sample
        state = model.state_size(context)
        logger.info("%s: %s parameters, a state of %s numbers", cfg._name, f"{model.parameter_count:,}", f"{state:,}")
        return model

    @property
    def state_is_bounded(self) -> bool:
        """Whether the state keeps its size however long the text is."""
        return True

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


class PostNormDecoder(StatefulDecoder):
    """Embedding times sqrt(d_model), the layers with the attentions of `build_attention(cfg)`, and the output layer."""

    def __init__(self, cfg, dictionary, build_attention):
        super().__init__(dictionary)
        self.scale = cfg.d_model**0.5
        self.dropout = cfg.dropout
        self.embedding = nn.Embedding(len(dictionary) - FIRST_SYMBOL, cfg.d_model)
        self.layers = nn.ModuleList(DecoderLayer(cfg, build_attention(cfg)) for _ in range(cfg.layers))
        # the name under which fairseq's generator and scorer look for an output layer that is not one matrix
        self.adaptive_softmax = AdaptiveOutput(self.embedding, parse_cutoffs(cfg.cutoffs), FIRST_SYMBOL)
        self.apply(initialise)

    def embed(self, tokens):
        """Symbols (B, L) -> scaled embeddings (B, L, d_model), ahead of dropout."""
        return self.scale * self.embedding((tokens - FIRST_SYMBOL).clamp(min=0))

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training)


class DecoderLayer(nn.Module):
    """Self-attention and feed-forward block, each followed by dropout, the residual and layer norm (post-norm)."""

    def __init__(self, cfg, attention):
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(cfg.d_model)
        self.ffn = nn.Sequential(
            nn.Linear(cfg.d_model, cfg.d_ffn),
            nn.ReLU(),
            nn.Dropout(cfg.dropout),
            nn.Linear(cfg.d_ffn, cfg.d_model),
        )
        self.ffn_norm = nn.LayerNorm(cfg.d_model)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, *context):
        """x (B, L, d_model) and what the attention takes beside it -> the same shape, and the attention's state."""
        read, state = self.attention(x, *context)
        x = self.attention_norm(x + self.dropout(read))
        return self.ffn_norm(x + self.dropout(self.ffn(x))), state


def initialise(module):
    """The authors' initialisation: weights N(0, 0.02), biases 0, layer norm weights N(1, 0.02)."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, 0.0, INIT_STD)
    elif isinstance(module, nn.LayerNorm):
        nn.init.normal_(module.weight, 1.0, INIT_STD)
    elif isinstance(module, AdaptiveOutput):
        nn.init.normal_(module.cluster_weight, 0.0, INIT_STD)
    if getattr(module, "bias", None) is not None:
        nn.init.zeros_(module.bias)


def parse_cutoffs(text: str) -> tuple:
    words = [word.strip() for word in str(text).strip("()[]").split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"cutoffs: expected whole numbers separated by commas, got {text!r}")
    return tuple(map(int, words))

"""The Moses tokenisation of data_prep/ as a fairseq tokenizer: `fairseq-interactive … --tokenizer fwp_moses`.

fairseq's own `moses` escapes characters and leaves punctuation as it is, so a model of this project's data would be
given tokens that it never saw.
"""

from dataclasses import dataclass

from fairseq.data.encoders import register_tokenizer
from fairseq.dataclass import FairseqDataclass
from omegaconf import II

from fwp_fairseq.moses import Moses


@dataclass
class MosesConfig(FairseqDataclass):
    source_lang: str = II("task.source_lang")
    target_lang: str = II("task.target_lang")


@register_tokenizer("fwp_moses", dataclass=MosesConfig)
class MosesTokenizer:
    """Text (one line) to tokens of the source language; tokens of the target language to text."""

    def __init__(self, cfg: MosesConfig):
        self.source, self.target = Moses(cfg.source_lang), Moses(cfg.target_lang)

    def encode(self, text: str) -> str:
        return self.source.tokens(text)

    def decode(self, tokens: str) -> str:
        return self.target.text(tokens)

"""The Moses tokenisation of data_prep/ as a fairseq tokenizer: `fairseq-interactive … --tokenizer fwp_moses`.

fairseq's own `moses` escapes characters and leaves punctuation as it is, so a model of this project's data would be
given tokens that it never saw.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq.data.encoders import register_tokenizer
from fairseq.dataclass import FairseqDataclass
from omegaconf import II

from fwp_fairseq.moses import Moses


@dataclass
class MosesConfig(FairseqDataclass):
    source_lang: str = II("task.source_lang")
    target_lang: str = II("task.target_lang")
    protected_text: Optional[str] = field(
        default=None, metadata={"help": "file with the regular expression of what stays a token (protected.regex)"}
    )


@register_tokenizer("fwp_moses", dataclass=MosesConfig)
class MosesTokenizer:
    """Text (one line) to tokens of the source language; tokens of the target language to text."""

    def __init__(self, cfg: MosesConfig):
        protected = cfg.protected_text and re.compile(Path(cfg.protected_text).read_text(encoding="utf-8"))
        self.source, self.target = Moses(cfg.source_lang, protected), Moses(cfg.target_lang)

    def encode(self, text: str) -> str:
        return self.source.tokens(text)

    def decode(self, tokens: str) -> str:
        return self.target.text(tokens)

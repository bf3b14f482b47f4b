"""Datasets, and the tokenizer of raw text."""

import fairseq  # noqa: F401  first, since loading it registers the modules of this package

from . import moses_tokenizer  # noqa: F401

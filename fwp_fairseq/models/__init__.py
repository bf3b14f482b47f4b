"""fairseq models."""

from . import retrieval  # noqa: F401

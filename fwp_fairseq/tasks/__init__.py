"""fairseq tasks."""

from . import synthetic_retrieval  # noqa: F401

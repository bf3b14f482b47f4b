"""fairseq criterions."""

from . import retrieval_error  # noqa: F401

"""fairseq optimizers."""

from . import torch_adam  # noqa: F401

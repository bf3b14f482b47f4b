"""fairseq optimizers."""

import fairseq  # noqa: F401  first, since loading it registers the modules of this package

from . import torch_adam  # noqa: F401

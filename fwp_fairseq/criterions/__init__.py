"""fairseq criterions."""

import fairseq  # noqa: F401  first, since loading it registers the modules of this package

from . import language_model_loss  # noqa: F401
from . import retrieval_error  # noqa: F401

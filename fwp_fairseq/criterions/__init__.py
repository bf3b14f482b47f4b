"""fairseq criterions."""

import fairseq  # noqa: F401  first, since loading it registers the modules of this package

from . import retrieval_error  # noqa: F401

"""fairseq tasks."""

import fairseq  # noqa: F401  first, since loading it registers the modules of this package

from . import language_modeling  # noqa: F401
from . import synthetic_retrieval  # noqa: F401
from . import translation  # noqa: F401

"""fairseq models."""

import fairseq  # noqa: F401  first, since loading it registers the modules of this package

from . import language_model, transformer_xl  # noqa: F401
from . import language_model_architectures  # noqa: F401  after the models that it names
from . import retrieval  # noqa: F401
from . import translation, translation_architectures  # noqa: F401

"""Linear attention for fairseq's translation transformer. The one part of `modules` that stands on fairseq."""

import fairseq  # noqa: F401  first, since loading it registers the models that use this package

"""fwp_fairseq: fast weight programmers as a fairseq plugin.

`import fwp_fairseq`, or `common.user_dir=fwp_fairseq` on a fairseq command, registers every model, task,
criterion and optimizer of the package. Importing is cheap: fairseq takes seconds to load, so the parts are
registered right away where it is loaded already, and otherwise at the moment it first is. `fwp_fairseq.ops`
and, but for `modules.translation`, `fwp_fairseq.modules` never need it.
"""

import importlib.abc
import importlib.util
import sys

__version__ = "0.1.0"


def register() -> None:
    """Register all parts with fairseq, and mend its version seams. Calling it again does nothing more."""
    from fwp_fairseq import compat

    compat.apply()
    import fwp_fairseq.criterions  # noqa: F401
    import fwp_fairseq.data  # noqa: F401
    import fwp_fairseq.models  # noqa: F401
    import fwp_fairseq.optim  # noqa: F401
    import fwp_fairseq.tasks  # noqa: F401


class _RegisterOnceFairseqIsLoaded(importlib.abc.MetaPathFinder):
    """Lets the first import of fairseq go its way, and registers our parts when it is through."""

    def find_spec(self, name, path=None, target=None):
        if name != "fairseq":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("fairseq")
        if spec is not None:
            load = spec.loader.exec_module

            def load_and_register(module):
                load(module)
                register()

            spec.loader.exec_module = load_and_register
        return spec


if "fairseq" in sys.modules:
    register()
else:
    sys.meta_path.insert(0, _RegisterOnceFairseqIsLoaded())

"""A figure as the content of a PNG file."""

import io

from fwp_fairseq.reports.report import ReportError


def png(draw, *arguments):
    """What `draw(*arguments)`, which returns a matplotlib Figure, looks like: bytes, the same for the same arguments.

    Raises ReportError where matplotlib is not installed.
    """
    try:
        import matplotlib.style
    except ImportError as error:
        raise ReportError(f"figures need matplotlib ({error}): pip install 'fwp_fairseq[plot]'")
    # A reader's own matplotlibrc must not change the committed picture.
    with matplotlib.style.context("default"):
        file = io.BytesIO()
        # Without the drawing program's version in the file: same picture, same bytes.
        draw(*arguments).savefig(file, format="png", dpi=130, metadata={"Software": None})
    return file.getvalue()

"""Reads English documentation out of Python wheels without importing them.

A wheel is a zip of Python files; every docstring in it is found with `ast`, cut into
paragraphs, and cleaned. Used by mini_lm.py.
"""

import ast
import re
import warnings
import zipfile
from pathlib import Path

# Vendored third parties and test suites: their text is not the package's own documentation.
SKIPPED_FOLDERS = {"tests", "test", "testing", "_vendor", "vendor", "extern", "externals", "_externals", "_extern"}

DOCUMENTED_NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLANK_LINES = re.compile(r"\n\s*\n")
RULE = re.compile(r"[-=~^*]{3,}")  # underlines of reStructuredText headings


def read_wheel(wheel: Path) -> list[tuple[str, list[str]]]:
    """The documentation of a wheel: (module path inside the wheel, its paragraphs), sorted by path."""
    modules = []
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".py") and not SKIPPED_FOLDERS.intersection(name.split("/")):
                modules.append((name, read_module(archive.read(name))))
    return modules


def read_module(source: bytes) -> list[str]:
    """The paragraphs of all docstrings of one Python file, in the order of the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes such as "\d" warn; they are not ours to mend
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return []  # a template or a file for another Python, not documentation
    nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED_NODES)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))  # ast.walk goes by depth, readers by line
    docstrings = (ast.get_docstring(node, clean=False) for node in nodes)
    return [paragraph for text in docstrings if text for paragraph in split_paragraphs(text)]


def split_paragraphs(docstring: str) -> list[str]:
    """Paragraphs (blocks between blank lines), each as one line with single spaces.

    Dropped: paragraphs with non-ASCII characters (rare symbols would each become a subword of
    their own), doctests (code and number tables, not English), and those under four words.
    """
    paragraphs = []
    for block in BLANK_LINES.split(docstring):
        line = " ".join(RULE.sub(" ", block).split())
        if line.isascii() and line.isprintable() and ">>>" not in line and line.count(" ") >= 3:
            paragraphs.append(line)
    return paragraphs

"""What a report consists of, and the text tables that all of them use."""

from collections.abc import Callable
from dataclasses import dataclass, field


class ReportError(Exception):
    """A report cannot be built; the text says why and what to do."""


@dataclass
class Part:
    """One Markdown table and its figure. Runs at mini scale have a part of their own."""

    name: str  # file name without ending
    markdown: str
    brief: Callable[[int], str]  # width in columns -> short text for the terminal
    figure: Callable[[], bytes]  # PNG; drawn when called, since matplotlib is optional


@dataclass
class Report:
    parts: list[Part]
    problems: list[str] = field(default_factory=list)  # records that were left out, and why


@dataclass
class Cell:
    """One number that the paper has or that stands beside it, and our runs of it, one a seed.

    metric: its name in the records; published: the number, a text such as ">260", or None; scale: "paper", or "mini"
    for what is never compared.
    """

    row: str
    place: str
    metric: str
    published: float | str | None
    scale: str
    records: list[dict]


def write_file(path, content):
    """Write bytes to a file, making its folder. Raises ReportError where that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise ReportError(f"{path} cannot be written ({error.strerror}); name another place with --out")


def markdown_table(header, rows, text_columns=0):
    """Markdown table; the first `text_columns` columns are set left, the others, numbers, right.

    Cells are padded, so that the source reads as a table too.
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    is_text = [i < text_columns for i in range(len(header))]
    rule = ["-" * (width - 1) + ("-" if text else ":") for width, text in zip(widths, is_text)]
    lines = []
    for line in [header, rule, *rows]:
        cells = zip(line, widths, is_text)
        padded = [cell.ljust(width) if text else cell.rjust(width) for cell, width, text in cells]
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines)


def three_digits(value):
    """Three digits, or all in front of the point; nothing for None."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"

"""Reads the test sets of the WMT workshops: SGML with one `<seg id="…">` a sentence in each `<doc>`."""

import html
import re
from pathlib import Path

from stages import DataError

PARTS = re.compile(r'<(doc)\b|<seg\b[^>]*\bid\s*=\s*"?([^\s">]+)"?[^>]*>(.*?)</seg>', re.IGNORECASE | re.DOTALL)


def read_sgm(path: Path) -> list[tuple[tuple[int, str], str]]:
    """Each segment in order: (number of its document, its id), and its text in one line, entities resolved.

    DataError if the file is not UTF-8, has no segment, or one that does not end.
    """
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path.name}: line {line} is not UTF-8; fetch the archive again") from error
    document, segments = 0, []
    for new_document, number, sentence in PARTS.findall(text):
        if new_document:
            document += 1
        else:
            segments.append(((document, number), " ".join(html.unescape(sentence).split())))
    opened = len(re.findall(r"<seg\b", text, re.IGNORECASE))
    if not segments or len(segments) != opened:
        raise DataError(f"{path.name}: {opened} segments begin, {len(segments)} are whole; fetch the archive again")
    return segments

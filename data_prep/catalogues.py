"""Reads English-German messages out of the gettext catalogues in Python wheels. Used by mini_mt.py."""

import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

GERMAN_CATALOGUE = re.compile(r"(^|/)de(_DE)?/LC_MESSAGES/[^/]+\.mo$")

# What a program replaces or a browser interprets: translated as it stands, and kept in one piece.
PLACEHOLDER = re.compile(
    r"</?[A-Za-z][^<>]*>"  # HTML tags, <name>
    r"|%\([^()\s]+\)[-#0+]?\d*(?:\.\d+)?[A-Za-z]"  # %(name)s
    r"|%[-#0+]?\d*(?:\.\d+)?[sdifgrxc](?![A-Za-z])"  # %s
    r"|\{\{[^{}]*\}\}|\$?\{[^{}\s]*\}|\$[A-Za-z_]\w*"  # {{ name }}, {name}, ${name}, $name
    r"|&(?:[A-Za-z]+|#\d+);"  # HTML entities
    r"|https?://[^\s<>\"']*[\w/]"
)
IDENTIFIER = re.compile(r"[\w.:-]*(_|-\w+-)[\w.:-]*")  # some packages use message names instead of English
MNEMONIC = {"_": re.compile(r"\w*_\w+"), "&": re.compile(r"\w*&\w+")}  # the letter to press: _File, E&xit
LETTERS = re.compile(r"[^\W\d_]{2}")


def read_wheel(wheel: Path) -> list[tuple[str, str]]:
    """The usable pairs (English, German) of all German catalogues of a wheel, in the order of the catalogues' names."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if GERMAN_CATALOGUE.search(name))
        messages = [message for name in names for message in read_catalogue(archive.read(name))]
    return [pair for message in messages if (pair := usable_pair(*message))]


def read_catalogue(data: bytes) -> Iterator[tuple[str, str]]:
    """The singular messages of a compiled catalogue (.mo): tables of (length, offset) point at the strings.

    A context before the message (ended by EOT) is dropped. A plural holds a NUL between its forms;
    the catalogue's own header has an empty message.
    """
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, messages, translations = struct.unpack_from(f"{order}3I", data, 8)
    for i in range(count):
        message, translation = (_string(data, order, table + 8 * i) for table in (messages, translations))
        if message and b"\0" not in message:
            yield message.rpartition(b"\x04")[2].decode(), translation.decode()


def _string(data: bytes, order: str, entry: int) -> bytes:
    length, offset = struct.unpack_from(f"{order}2I", data, entry)
    return data[offset : offset + length]


def usable_pair(english: str, german: str) -> tuple[str, str] | None:
    """The pair with single spaces and without mnemonics, or None if it teaches no translation.

    None: not translated, no words, a message name in place of English, unprintable characters
    (private-use ones are among them), or placeholders that differ.
    """
    english, german = without_mnemonics(" ".join(english.split()), " ".join(german.split()))
    if not german or german == english or IDENTIFIER.fullmatch(english):
        return None
    if not (english.isprintable() and german.isprintable()):
        return None
    if not all(LETTERS.search(PLACEHOLDER.sub("", text)) for text in (english, german)):
        return None
    if sorted(PLACEHOLDER.findall(english)) != sorted(PLACEHOLDER.findall(german)):
        return None
    return english, german


def without_mnemonics(english: str, german: str) -> tuple[str, str]:
    """Removes the mark of a mnemonic: one in each text, in words that differ (else it is an identifier)."""
    for mark, word in MNEMONIC.items():
        found = [word.findall(PLACEHOLDER.sub("", text)) for text in (english, german)]
        if all(len(words) == 1 and words[0].count(mark) == 1 for words in found) and found[0] != found[1]:
            english, german = (
                text.replace(words[0], words[0].replace(mark, "")) for text, words in zip((english, german), found)
            )
    return english, german

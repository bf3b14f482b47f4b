"""Text to a language model's symbols and back, as the data folder has it: words, or pieces of sentencepiece.

    text = open_text(Path("data/mini_lm/data-bin"), dictionary)
    symbols = text.encode("Returns the")
    words = "".join(text.decoder().add(symbol) for symbol in symbols)
"""

from pathlib import Path

WORD_BEGINS = "\u2581"  # sentencepiece's mark, in front of a piece that begins a word


class TextError(ValueError):
    """A text cannot be turned into symbols; the message says why and what to do."""


def open_text(data: Path, dictionary, allow_unknown: bool = False):
    """The `Text` of a data folder; TextError where its subword model is missing."""
    if not any(symbol.startswith(WORD_BEGINS) for symbol in dictionary.symbols):
        return Text(dictionary, str.split, allow_unknown)
    path = pieces_of(data)
    if path is not None:
        return Text(dictionary, load_pieces(path), allow_unknown, pieces=True)
    places = ", ".join(map(str, places_of_pieces(data)))
    raise TextError(f"{data}/dict.txt has subwords, and their model is in none of {places}; copy it there")


def places_of_pieces(data: Path) -> list:
    return [folder / "sentencepiece.model" for folder in (data, data.parent / "pieces", data.parent)]


def pieces_of(data: Path) -> Path | None:
    """The subword model of a data folder, or None where it has words."""
    return next((path for path in places_of_pieces(data) if path.is_file()), None)


def load_pieces(path: Path):
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise TextError(f"{path} cannot be read ({error}); make it again with data_prep/mini_lm.py")
    return lambda line: processor.encode(line, out_type=str)


class Text:
    """Encodes and decodes; `split(line)` gives the words or pieces of a line."""

    def __init__(self, dictionary, split, allow_unknown: bool = False, pieces: bool = False):
        self.dictionary, self.split, self.allow_unknown, self.pieces = dictionary, split, allow_unknown, pieces
        self.never_in_texts = (dictionary.bos(), dictionary.pad(), dictionary.eos())

    def encode(self, text: str) -> list:
        """Symbols of a text, an end of line for each line break.

        TextError where it has a word that is not in the dictionary, unless they are allowed, which makes them <unk>.
        """
        lines = [self.split(line) for line in text.split("\n")]
        unknown = list(dict.fromkeys(word for line in lines for word in line if not self.knows(word)))
        if unknown and not self.allow_unknown:
            kind = "pieces" if self.pieces else "words"
            raise TextError(
                f"{kind} of the prompt that are not in dict.txt: {' '.join(unknown)}; put others, or let "
                f"--allow-unknown read them as {self.dictionary.unk_word}"
            )
        symbols = []
        for line in lines:
            symbols += [self.dictionary.index(word) if self.knows(word) else self.dictionary.unk() for word in line]
            symbols.append(self.dictionary.eos())
        return symbols[:-1]

    def knows(self, word: str) -> bool:
        return word in self.dictionary and self.dictionary.index(word) not in self.never_in_texts

    def decoder(self):
        """A `Decoder` at the beginning of a line."""
        return Decoder(self.dictionary, self.pieces)


class Decoder:
    """Writes symbols as they come: blanks between words, a line break for an end of line."""

    def __init__(self, dictionary, pieces: bool):
        self.dictionary, self.pieces = dictionary, pieces
        self.at_line_start = True

    def add(self, symbol: int) -> str:
        """What one more symbol adds to the text."""
        if symbol == self.dictionary.eos():
            self.at_line_start = True
            return "\n"
        word = self.dictionary[symbol]
        written = word.replace(WORD_BEGINS, " ") if self.pieces else f" {word}"
        if self.at_line_start:
            written = written.removeprefix(" ")
        self.at_line_start = False
        return written

"""Text to tokens and back, in the manner of the Moses scripts (by sacremoses), and subwords back to tokens.

    moses = Moses("de")
    moses.text(moses.tokens("Das ist (fast) alles."))   # "Das ist (fast) alles."

data_prep/ goes one way, BLEU the other. Nothing is escaped. Needs neither torch nor fairseq.
"""

import re

SPACE = "▁"  # what sentencepiece writes for a space: U+2581
PROTECTED = "protected.regex"  # of a data folder: the expression of the text that its tokens keep whole
FIRST_PRIVATE = 0xE000  # private-use characters stand for protected text while the tokeniser runs


class Moses:
    """Punctuation normalisation, tokeniser and detokeniser of one language.

    language: "en", "de" or another code that sacremoses knows.
    protected: text that stays as it is and becomes a token of its own (placeholders); None for no such text.
    """

    def __init__(self, language: str, protected: re.Pattern | None = None):
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer  # here: they take a second

        self._normaliser = MosesPunctNormalizer(lang=language)
        self._tokeniser = MosesTokenizer(lang=language)
        # sacremoses makes these sets of all letters anew for every word with a dot, which takes most of its time.
        self._tokeniser.islower = frozenset(self._tokeniser.IsLower).issuperset
        alphabet = frozenset(self._tokeniser.IsAlpha)
        self._tokeniser.isanyalpha = lambda text: not alphabet.isdisjoint(text)
        self._detokeniser = MosesDetokenizer(lang=language)
        self._protected = protected

    def tokens(self, text: str) -> str:
        """Tokens of one line of text, with normalised punctuation and single spaces between them."""
        kept = []

        def hide(match: re.Match) -> str:
            kept.append(match.group())
            return f" {chr(FIRST_PRIVATE + len(kept) - 1)} "

        if self._protected:
            text = self._protected.sub(hide, text)
        text = self._tokeniser.tokenize(self._normaliser.normalize(text), escape=False, return_str=True)
        for number, original in enumerate(kept):
            text = text.replace(chr(FIRST_PRIVATE + number), original)
        return " ".join(text.split())  # the tokeniser keeps some kinds of space, which fairseq would split at

    def text(self, tokens: str) -> str:
        """One line of text from tokens. What normalisation changed stays changed."""
        return self._detokeniser.detokenize(tokens.split(), unescape=False)


def join_subwords(subwords: str) -> str:
    """Tokens from sentencepiece subwords with spaces between them; no model is needed for this way."""
    return " ".join(subwords.replace(" ", "").replace(SPACE, " ").split())

"""Joint subwords of two languages by sentencepiece. Its own normalisation is off: the text comes in tokens."""

import functools
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable

from stages import DataError

SYMBOL_OCCURRENCES = 10  # protected text this frequent is a subword of its own


def learn_subwords(
    read: Callable[[], Iterable[tuple[str, ...]]], vocabulary: int, kind: str, sample: int, protected: re.Pattern | None
) -> bytes:
    """A sentencepiece model (its file's content) of `vocabulary` subwords; the same one for the same text.

    read: gives the pairs in tokens, anew at each call. kind: "bpe" or "unigram".
    sample: how many pairs, evenly spread, to learn from: sentencepiece holds them in memory.
    protected: tokens that match it and are frequent become one subword each.
    """
    import sentencepiece  # here, so that --help is quick

    total = sum(1 for _ in read())
    if not total:
        raise DataError("no pair is left to learn subwords from: every training pair was dropped")
    step = -(-total // sample)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for number, pair in enumerate(read()) if number % step == 0 for line in pair),
            model_writer=model, model_type=kind, vocab_size=vocabulary,
            user_defined_symbols=frequent_tokens(read(), protected) if protected else [],
            character_coverage=0.9999, normalization_rule_name="identity", max_sentence_length=1 << 16,
            num_threads=1, bos_id=-1, eos_id=-1, minloglevel=1,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].strip()
        raise DataError(
            f"no {vocabulary:,} subwords can be learnt from {total:,} pairs ({reason}); choose another --vocab"
        ) from error
    return model.getvalue()


def frequent_tokens(pairs: Iterable[tuple[str, ...]], protected: re.Pattern) -> list[str]:
    counts = Counter(token for pair in pairs for line in pair for token in line.split() if protected.fullmatch(token))
    # A token follows a space, which sentencepiece writes as "▁" in front of it.
    return sorted("▁" + token for token, count in counts.items() if count >= SYMBOL_OCCURRENCES)


def encode_batch(model: str, pairs: list[tuple[bytes, ...]]) -> list[tuple[str, ...]]:
    """The pairs of lines in subwords with spaces between them, by the model file `model`.

    A character that the model lacks becomes <unk>, not a subword that only fairseq's dictionary knows.
    """
    processor, pieces = _load(model)
    sides = ([line.decode().rstrip("\n") for line in lines] for lines in zip(*pairs))
    encoded = (
        [" ".join(pieces[number] for number in line) for line in processor.encode(lines, out_type=int)]
        for lines in sides
    )
    return list(zip(*encoded, strict=True))


@functools.cache
def _load(model: str):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    return processor, [processor.id_to_piece(number) for number in range(processor.vocab_size())]

"""BLEU of a translated split: reads what fairseq-generate wrote, checks that it is complete, scores it.

    references, language = read_references(data_bin, "test")
    hypotheses = read_hypotheses("generate-test.txt", "test", len(references), language)
    score(hypotheses, references, language)   # {"bleu": …, "bleu_signature": …, …}

A sentence that is missing, there twice or unknown is an error: BLEU would only come out lower. Needs
neither torch nor fairseq.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fwp_fairseq.moses import SPACE, Moses, join_subwords

HYPOTHESIS = re.compile(r"H-(\d+)\t[^\t]*\t(.*)")
LAST_LINE = re.compile(r"Generate (\S+) with beam=")
HYPHENATED = re.compile(r"(\S)-(\S)")


class BleuError(Exception):
    """Why there is no score, and the remedy."""


def score(hypotheses: Sequence[str], references: Sequence[str], language: str = "de") -> dict:
    """Both scores of plain text, sentence by sentence, as entries for a run record.

    bleu, bleu_signature: sacreBLEU with its tokenisation 13a.
    bleu_compound_split, bleu_compound_split_signature: tokenised BLEU. Hypotheses and references are
    normalised and tokenised in the manner of Moses, and hyphenated compounds split ("E-Mail" to
    "E ##AT##-##AT## Mail"), as for most WMT14 English-German numbers from before sacreBLEU. The signature
    knows nothing of that and says "tok:none".
    sentences: how many there are. Raises BleuError if there are none, or not as many of both.
    """
    from sacrebleu.metrics import BLEU  # here, so that --help is quick

    if not references or len(hypotheses) != len(references):
        raise BleuError(f"{len(hypotheses):,} hypotheses for {len(references):,} references; expected one for each")
    moses = Moses(language)
    in_tokens = [[split_compounds(moses.tokens(line)) for line in side] for side in (hypotheses, references)]
    scores = {"sentences": len(references)}
    for name, tokeniser, ours, theirs in (
        ("bleu", "13a", hypotheses, references),
        ("bleu_compound_split", "none", *in_tokens),
    ):
        metric = BLEU(tokenize=tokeniser, force=True)  # force: tokens are meant to be there, without a warning
        scores[name] = metric.corpus_score(ours, [theirs]).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores


def split_compounds(tokens: str) -> str:
    """Cuts words at their hyphens."""
    return HYPHENATED.sub(r"\1 ##AT##-##AT## \2", tokens)


def read_references(data_bin: str | Path, split: str) -> tuple[list[str], str]:
    """The plain references of a split, and their language, from a data folder that data_prep/ made."""
    data_bin = Path(data_bin)
    found = sorted(data_bin.glob(f"ref.{split}.*"))
    if len(found) != 1:
        splits = sorted({path.suffixes[0][1:] for path in data_bin.glob("ref.*.*")})
        there = (
            f"it has references for {', '.join(splits)}" if splits else "name a data-bin folder that data_prep/ made"
        )
        raise BleuError(f"{data_bin}: no plain references of the split {split} there (ref.{split}.LANGUAGE); {there}")
    return read_lines(found[0]), found[0].suffix[1:]


def read_hypotheses(path: str | Path, split: str, count: int, language: str) -> list[str]:
    """The plain hypotheses of a split of `count` sentences, in the order of the split.

    path: what fairseq-generate printed (its H- lines, in subwords or joined), or plain text with one
    hypothesis a line. Raises BleuError naming the sentences that are missing, there twice or unknown.
    """
    lines = read_lines(path)
    of_split = next((match.group(1) for line in lines if (match := LAST_LINE.match(line))), split)
    if of_split != split:
        raise BleuError(f"{path} is the translation of the split {of_split}; expected {split}")
    numbered = [match.groups() for line in lines if (match := HYPOTHESIS.fullmatch(line))]
    if not numbered:
        if len(lines) != count:
            raise BleuError(
                f"{path} has {len(lines):,} lines; expected the {count:,} hypotheses of the split {split}, one a line, "
                "or the output of fairseq-generate with its H- lines"
            )
        return lines
    numbers = Counter(int(number) for number, _ in numbered)
    problems = [
        ("missing", [number for number in range(count) if number not in numbers]),
        ("there more than once", [number for number, times in sorted(numbers.items()) if times > 1]),
        (f"not in the split, which ends at {count - 1}", [number for number in sorted(numbers) if number >= count]),
    ]
    if any(found for _, found in problems):
        said = "; ".join(
            f"{_listed(found)} {'is' if len(found) == 1 else 'are'} {what}" for what, found in problems if found
        )
        raise BleuError(
            f"{path} is not one translation of the {count:,} sentences of the split {split}: {said}. Generate it anew, "
            "with dataset.required_batch_size_multiple=1, generation.nbest=1 and no limit on lengths"
        )
    in_order = [text for _, text in sorted((int(number), text) for number, text in numbered)]
    if any(SPACE in text for text in in_order):
        in_order = [join_subwords(text) for text in in_order]
    moses = Moses(language)
    return [moses.text(text) for text in in_order]


def read_lines(path: str | Path) -> list[str]:
    """The lines of a text file, which end in "\\n" and nothing else; BleuError if it cannot be read."""
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise BleuError(f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BleuError(f"{path}: line {line} is not UTF-8") from error
    return text.removesuffix("\n").split("\n") if text else []


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (f" and {len(numbers) - 10:,} more" if len(numbers) > 10 else "")
    return f"sentence{'s' * (len(numbers) > 1)} {shown}"

"""fwp-bleu: its figures against the sacrebleu command, and translations that are not complete."""

import json
import random
import subprocess
import sys

import pytest

from fwp_fairseq.bleu import BleuError, read_hypotheses, score, split_compounds
from fwp_fairseq.cli.bleu import main

REFERENCES = [
    'Das E-Mail-Konto "Post" (neu) ist eingerichtet, nicht wahr?',
    "Die Regel schreibt den Wert unter den Schlüssel.",
    "1.000,50 Euro: So viel kostet ein Link-State-Protokoll!",
    "Der Zustand wird gelesen, nachdem er geschrieben wurde.",
    "Größer & kleiner sind < und >.",
]
HYPOTHESES = [
    'Das E-Mail Konto "Post" (neu) wurde eingerichtet, nicht?',
    "Die Regel schreibt einen Wert unter den Schlüssel.",
    "1.000,50 Euro: So viel kostet das Link-State-Protokoll!",
    "Der Zustand wird gelesen, bevor er geschrieben wurde.",
    "Größer & kleiner sind < und >.",
]
# The same in tokens and subwords, as a model of ours writes them.
SUBWORDS = [
    '▁Das ▁E - Mail ▁Kon to ▁" ▁Post ▁" ▁( ▁neu ▁) ▁wurde ▁eingerichtet ▁, ▁nicht ▁?',
    "▁Die ▁Reg el ▁schreibt ▁einen ▁Wert ▁unter ▁den ▁Schl üssel ▁.",
    "▁1. 000,50 ▁Euro ▁: ▁So ▁viel ▁kostet ▁das ▁Link - State - Proto koll ▁!",
    "▁Der ▁Zustand ▁wird ▁gelesen ▁, ▁bevor ▁er ▁geschrieben ▁wurde ▁.",
    "▁Größer ▁& ▁kleiner ▁sind ▁< ▁und ▁> ▁.",
]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data-bin"
    folder.mkdir()
    for split in ("valid", "test"):
        (folder / f"ref.{split}.de").write_text("".join(f"{line}\n" for line in REFERENCES))
    return folder


def generated(lines, numbers=None, split="test") -> str:
    """What fairseq-generate prints, in an order of its own."""
    order = list(range(len(lines))) if numbers is None else numbers
    out = ["2026-01-01 12:00:00 | INFO | fairseq_cli.generate | loading model(s)"]
    for number in order:
        text = lines[number % len(lines)]
        out += [
            f"S-{number}\tx",
            f"T-{number}\ty",
            f"H-{number}\t-0.25\t{text}",
            f"D-{number}\t-0.25\t{text}",
            f"P-{number}\t-0.1 -0.2",
        ]
    return "\n".join([*out, f"Generate {split} with beam=4: BLEU4 = 1.23", ""])


def sacrebleu_command(references, hypotheses, tokenise) -> dict:
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(references),
        "-i",
        str(hypotheses),
        "-tok",
        tokenise,
        "--force",
        "-w",
        "6",
    ]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_scores_are_those_of_the_sacrebleu_command_on_the_written_files(data, tmp_path, capsys):
    order = list(range(5))
    random.Random(1).shuffle(order)
    (tmp_path / "out.txt").write_text(generated(SUBWORDS, order))
    assert main([str(tmp_path / "out.txt"), str(data), "--out", str(tmp_path / "new" / "bleu")]) == 0
    written = tmp_path / "new" / "bleu" / "hypotheses.test.de"
    assert written.read_text().splitlines() == HYPOTHESES
    scores = json.loads((tmp_path / "new" / "bleu" / "bleu.test.json").read_text())
    command = sacrebleu_command(data / "ref.test.de", written, "13a")
    assert scores["bleu"] == pytest.approx(command["score"], abs=1e-6)
    assert command["signature"] == scores["bleu_signature"] and "|tok:13a|" in command["signature"]
    assert scores["sentences"] == 5
    assert f"test: {scores['bleu']:.2f} sacreBLEU (nrefs:1|case:mixed|" in capsys.readouterr().out


def test_the_tokenised_score_is_that_of_sacrebleu_on_split_tokens(tmp_path):
    by_hand = {
        "ref": [
            'Das E ##AT##-##AT## Mail ##AT##-##AT## Konto " Post " ( neu ) ist eingerichtet , nicht wahr ?',
            "1.000,50 Euro : So viel kostet ein Link ##AT##-##AT## State ##AT##-##AT## Protokoll !",
        ],
        "hyp": [
            'Das E ##AT##-##AT## Mail Konto " Post " ( neu ) wurde eingerichtet , nicht ?',
            "1.000,50 Euro : So viel kostet das Link ##AT##-##AT## State ##AT##-##AT## Protokoll !",
        ],
    }
    for name, lines in by_hand.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    scores = score(HYPOTHESES[::2][:2], REFERENCES[::2][:2])
    command = sacrebleu_command(tmp_path / "ref", tmp_path / "hyp", "none")
    assert scores["bleu_compound_split"] == pytest.approx(command["score"], abs=1e-6)
    assert scores["bleu_compound_split_signature"] == command["signature"]
    assert scores["bleu_compound_split"] != pytest.approx(scores["bleu"], abs=0.1)


def test_compounds_are_split_at_each_hyphen_inside_of_a_word():
    assert split_compounds("rich-text format - -x y- a--b") == (
        "rich ##AT##-##AT## text format - -x y- a ##AT##-##AT## -b"
    )


def test_a_perfect_translation_scores_100_both_ways():
    scores = score(REFERENCES, REFERENCES)
    assert scores["bleu"] == pytest.approx(100) and scores["bleu_compound_split"] == pytest.approx(100)


@pytest.mark.parametrize("lines", [SUBWORDS, [line.replace(" ", "").replace("▁", " ").strip() for line in SUBWORDS]])
def test_subwords_and_joined_tokens_give_the_same_text(tmp_path, lines):
    (tmp_path / "out.txt").write_text(generated(lines))
    assert read_hypotheses(tmp_path / "out.txt", "test", 5, "de") == HYPOTHESES


def test_plain_hypotheses_are_taken_as_they_are(data, tmp_path, capsys):
    (tmp_path / "plain.txt").write_text("\n".join(HYPOTHESES))
    assert main([str(tmp_path / "plain.txt"), str(data), "--split", "valid"]) == 0
    assert f"valid: {score(HYPOTHESES, REFERENCES)['bleu']:.2f} sacreBLEU" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data-bin", "plain.txt"]


def test_an_empty_hypothesis_is_a_hypothesis(tmp_path):
    (tmp_path / "out.txt").write_text(generated([*SUBWORDS[:4], ""]))
    assert read_hypotheses(tmp_path / "out.txt", "test", 5, "de") == [*HYPOTHESES[:4], ""]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 1, 3], "sentences 2, 4 are missing"),
        ([0, 1, 2, 3], "sentence 4 is missing. .*required_batch_size_multiple=1"),
        ([0, 1, 2, 2, 3, 4], "sentence 2 is there more than once"),
        ([0, 1, 2, 3, 4, 5], "sentence 5 is not in the split, which ends at 4"),
        ([0, 1, 2, 3, 3], "sentence 4 is missing; sentence 3 is there more than once"),
    ],
)
def test_a_translation_that_is_not_complete_is_an_error_and_no_score(data, tmp_path, capsys, numbers, message):
    (tmp_path / "out.txt").write_text(generated(SUBWORDS, numbers))
    with pytest.raises(BleuError, match=message):
        read_hypotheses(tmp_path / "out.txt", "test", 5, "de")
    assert main([str(tmp_path / "out.txt"), str(data), "--out", str(tmp_path / "bleu")]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("fwp-bleu: error: ") and not captured.out
    assert not (tmp_path / "bleu").exists()


def test_many_missing_sentences_are_summed_up(tmp_path):
    (tmp_path / "out.txt").write_text(generated(SUBWORDS, [0]))
    with pytest.raises(BleuError, match="sentences 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 19 more are missing"):
        read_hypotheses(tmp_path / "out.txt", "test", 30, "de")


def test_the_translation_of_another_split_is_refused(data, tmp_path, capsys):
    (tmp_path / "out.txt").write_text(generated(SUBWORDS, split="valid"))
    assert main([str(tmp_path / "out.txt"), str(data)]) == 1
    assert "is the translation of the split valid; expected test" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "split", "message"),
    [
        (b"one\ntwo\n", "test", "has 2 lines; expected the 5 hypotheses of the split test"),
        (b"", "test", "has 0 lines; expected the 5"),
        (b"one\nzw\xf6i\n", "test", "line 2 is not UTF-8"),
        (None, "test", "cannot be read (No such file or directory)"),
        (
            b"one\n",
            "train",
            "no plain references of the split train there (ref.train.LANGUAGE); it has references for test, valid",
        ),
    ],
)
def test_unusable_files_are_named(data, tmp_path, capsys, content, split, message):
    if content is not None:
        (tmp_path / "out.txt").write_bytes(content)
    assert main([str(tmp_path / "out.txt"), str(data), "--split", split]) == 1
    assert message in capsys.readouterr().err


def test_a_folder_without_references_is_named(tmp_path, capsys):
    (tmp_path / "out.txt").write_text("one\n")
    assert main([str(tmp_path / "out.txt"), str(tmp_path)]) == 1
    assert "name a data-bin folder that data_prep/ made" in capsys.readouterr().err


def test_scores_of_nothing_and_of_other_counts_are_refused():
    for hypotheses, references in (([], []), (["one"], ["one", "two"])):
        with pytest.raises(BleuError, match="expected one for each"):
            score(hypotheses, references)


def test_an_output_folder_that_cannot_be_made_is_named(data, tmp_path, capsys):
    (tmp_path / "plain.txt").write_text("\n".join(HYPOTHESES))
    assert main([str(tmp_path / "plain.txt"), str(data), "--out", str(tmp_path / "plain.txt" / "x")]) == 1
    assert "cannot be written (Not a directory); name another folder with --out" in capsys.readouterr().err

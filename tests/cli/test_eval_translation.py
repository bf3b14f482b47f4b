"""fwp-eval-translation on a tiny trained model: both scores, the record with its translations, and what it refuses."""

import json
import shutil

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fwp_fairseq.bleu import score
from fwp_fairseq.cli.eval_translation import main
from fwp_fairseq.cli.report import main as report
from fwp_fairseq.records import read_record
from tests.tasks.test_translation import SENTENCES, TINY, write_pairs


def run(*arguments):
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The tiny language as data_prep/ leaves a corpus: with plain sources and references, and counts."""
    folder = write_pairs(tmp_path_factory.mktemp("backwards") / "data-bin", "a b c d".split())
    stats = {}
    for split, count in SENTENCES.items():
        tokens = {}
        for side, kind in (("src", "src"), ("tgt", "ref")):
            dictionary = Dictionary.load(str(folder / f"dict.{side}.txt"))
            sentences = MMapIndexedDataset(str(folder / f"{split}.src-tgt.{side}"))
            lines = [dictionary.string(sentences[i]) for i in range(count)]
            if split != "train":
                (folder / f"{kind}.{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
            tokens[side] = int(sentences.sizes.sum())
        stats[split] = {"pairs": count, "src_tokens": tokens["src"], "tgt_tokens": tokens["tgt"]}
    (folder / "text_stats.json").write_text(json.dumps(stats))
    return folder


@pytest.fixture(scope="module")
def trained(train, data, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("trained") / "linear"
    folders = [f"task.data='{data}'", f"checkpoint.save_dir='{save_dir}'"]
    names = ["task.experiment=table_wmt14", "task.setting=mini", "row=linear"]
    assert train("reordering", *TINY, *folders, *names, experiment="wmt14_en_de") == 0
    return save_dir


@pytest.fixture
def copy(trained, tmp_path):
    """The run in a folder that may be changed."""
    return shutil.copytree(trained, tmp_path / "run")


def test_scores_translations_and_settings_are_recorded(copy, data, tmp_path, capsys):
    checkpoint, results = copy / "checkpoint_best.pt", tmp_path / "results"
    assert run(checkpoint, data, "--split", "valid", "--split", "test", "--results", results) == 0
    path = results / "runs/table_wmt14/linear/mini/seed1.json"
    record = read_record(path)
    metrics = record["metrics"]
    assert (metrics["valid_sentences"], metrics["test_sentences"], metrics["beam"]) == (51, 27, 4)
    assert record["scale"] == "mini" and "data" not in record["config"]["task"]
    hypotheses = path.with_suffix(".test.txt").read_text().splitlines()
    references = (data / "ref.test.tgt").read_text().splitlines()
    expected = score(hypotheses, references, "tgt")
    assert metrics["test_bleu"] == pytest.approx(expected["bleu"])
    assert metrics["test_bleu_compound_split"] == pytest.approx(expected["bleu_compound_split"])
    assert f"{metrics['test_bleu']:.2f} sacreBLEU (nrefs:1" in capsys.readouterr().out
    samples = [line.split("\t") for line in path.with_suffix(".samples.tsv").read_text().splitlines()]
    assert samples[0] == ["source", "reference", "hypothesis"] and len(samples) == 11
    assert all(row[1] in references and row[2] in hypotheses for row in samples[1:])

    assert report(["table_wmt14", "--results", str(results)]) == 0
    table = (results / "tables/table_wmt14_mini.md").read_text()
    assert f"{metrics['test_bleu']:.2f}" in table and "26.8" not in table  # the paper's number is not beside it
    assert f"reference: `{samples[1][1]}`" in table and f"linear (elu): `{samples[1][2]}`" in table
    assert (results / "figures/table_wmt14_mini.png").stat().st_size > 10_000


def test_what_is_recorded_is_replaced_only_by_the_same(copy, data, tmp_path, capsys):
    checkpoint, results = copy / "checkpoint_best.pt", tmp_path / "results"
    assert run(checkpoint, data, "--results", results, "--beam", 1) == 0  # valid and test
    kept = {path: path.read_bytes() for path in results.rglob("seed1.*")}
    assert len(kept) == 4
    for arguments, words in (
        (["--beam", 1, "--split", "test"], "numbers of valid too"),
        (["--beam", 2], "evaluated with beam 1, this would be 2"),
    ):
        assert run(checkpoint, data, "--results", results, *arguments) == 1
        assert words in capsys.readouterr().err
    [path] = [path for path in kept if path.suffix == ".json"]
    path.write_text(kept[path].decode().replace('"scale": "mini"', '"scale": "paper"'))
    assert run(checkpoint, data, "--results", results, "--beam", 1) == 1
    assert "must not replace" in capsys.readouterr().err
    path.write_bytes(kept[path])
    assert kept == {path: path.read_bytes() for path in results.rglob("seed1.*")}


@pytest.mark.parametrize("option", ["--beam=0", "--max-tokens=0", "--lenpen=nan", "--lenpen=long"])
def test_numbers_that_are_none_are_named(copy, data, capsys, option):
    with pytest.raises(SystemExit) as stop:
        run(copy / "checkpoint_best.pt", data, option)
    assert stop.value.code == 2 and f"argument {option.split('=')[0]}: expected a" in capsys.readouterr().err


def test_a_diverged_run_gets_its_record_without_translations(copy, data, tmp_path):
    log = json.loads((copy / "training.json").read_text())
    (copy / "training.json").write_text(json.dumps({**log, "status": "diverged", "reason": "the loss is nan"}))
    assert run(copy / "checkpoint_best.pt", data, "--results", tmp_path) == 0
    record = read_record(tmp_path / "runs/table_wmt14/linear/mini/seed1.json")
    assert (record["status"], record["metrics"]["reason"]) == ("diverged", "the loss is nan")
    assert not list(tmp_path.rglob("*.test.txt"))


def truncate(run, data):
    path = run / "checkpoint_best.pt"
    path.write_bytes(path.read_bytes()[:5000])


def swap_words(run, data):
    path = data / "dict.tgt.txt"
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")


@pytest.mark.parametrize(
    "damage, words",
    [
        (truncate, ["checkpoint_best.pt", "cut off"]),
        (lambda run, data: (run / "checkpoint_best.pt").unlink(), ["no such file"]),
        (lambda run, data: (run / "training.json").unlink(), ["training.json"]),
        (lambda run, data: (data / "ref.test.tgt").unlink(), ["references", "test"]),
        (lambda run, data: (data / "ref.test.tgt").write_text("A\n"), ["the 1 sentences of the split test", "not in the split"]),
        (lambda run, data: (data / "text_stats.json").unlink(), ["text_stats.json", "FileNotFoundError", "data_prep"]),
        (swap_words, ["dictionary"]),
        (lambda run, data: torch.save({"cfg": None, "model": {}}, run / "checkpoint_best.pt"), ["checkpoint_best.pt"]),
    ],
    ids=["truncated", "missing", "no log", "no references", "other references", "no counts", "other dictionary", "other model"],
)
def test_what_does_not_fit_is_one_clear_error_and_leaves_no_record(copy, data, tmp_path, capsys, damage, words):
    changed = shutil.copytree(data, tmp_path / "data-bin")
    damage(copy, changed)
    assert run(copy / "checkpoint_best.pt", changed, "--results", tmp_path / "results") == 1
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
    assert not list((tmp_path / "results").rglob("*.json"))

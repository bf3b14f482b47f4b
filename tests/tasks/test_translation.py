"""Training translation models and translating with them: every sentence counts, resuming, divergence, and bad input."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = {"train": 500, "valid": 51, "test": 27}  # no multiples of 8
TINY = (
    "model.d_model=32 model.heads=1 model.d_ffn=32 model.encoder_layers=1 model.decoder_layers=1 model.dropout=0 "
    "dataset.max_tokens=150 dataset.validate_interval_updates=10 optimization.max_update=30 optimization.lr=[0.01] "
    "lr_scheduler.warmup_updates=5 checkpoint.keep_interval_updates=9"
).split()


def write_pairs(folder, words):
    """A data folder whose targets are the sources read backwards, each word replaced by its translation."""
    dictionary, draw = Dictionary(), random.Random(1)
    for word in (*words, *map(str.upper, words)):
        dictionary.add_symbol(word)
    folder.mkdir()
    for language in ("src", "tgt"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    for split, count in SENTENCES.items():
        prefix = folder / f"{split}.src-tgt"
        builders = {side: make_builder(f"{prefix}.{side}.bin", impl="mmap", vocab_size=len(dictionary)) for side in ("src", "tgt")}
        for _ in range(count):
            sentence = [draw.choice(words) for _ in range(draw.randint(1, 3))]
            translation = [word.upper() for word in reversed(sentence)]
            for side, tokens in (("src", sentence), ("tgt", translation)):
                builders[side].add_item(torch.tensor([*map(dictionary.index, tokens), dictionary.eos()]))
        for side, builder in builders.items():
            builder.finalize(f"{prefix}.{side}.idx")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("backwards") / "data-bin", "a b c d".split())


@pytest.fixture(scope="module")
def train_row(train, data):
    """`train_row(save_dir, *overrides)` trains a tiny model and returns the exit status."""

    def run(save_dir, *overrides):
        folders = [f"task.data='{data}'", f"checkpoint.save_dir='{save_dir}'"]
        return train("reordering", *TINY, *folders, *overrides, experiment="wmt14_en_de")

    return run


@pytest.fixture(scope="module")
def trained(train_row, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("trained") / "performer"
    assert train_row(save_dir, "row=performer_64") == 0
    return save_dir


def log_of(save_dir):
    return json.loads((save_dir / "training.json").read_text())


def parameters(checkpoint):
    return torch.load(checkpoint)["model"]


def generate(data, checkpoint, *options):
    """What `fairseq-generate` makes of the test set, in this process."""
    from fairseq import options as fairseq_options
    from fairseq_cli import generate as command

    results = checkpoint.parent / "generated"
    arguments = [str(data), "--task", "fwp_translation", "--path", str(checkpoint), "--results-path", str(results)]
    parser = fairseq_options.get_generation_parser()
    command.main(fairseq_options.parse_args_and_arch(parser, [*arguments, "--batch-size", "16", "--cpu", *options]))
    return read_generated(results / "generate-test.txt")


def read_generated(path):
    """{number: (score, hypothesis)}"""
    lines = [line[2:].split("\t") for line in path.read_text().splitlines() if line.startswith("H-")]
    return {int(number): (score, hypothesis) for number, score, hypothesis in lines}


def test_training_lowers_the_loss_and_logs_its_curves(trained):
    log = log_of(trained)
    assert (log["status"], log["updates"], log["row"]) == ("finished", 30, "performer_64")
    assert (log["setting"], log["experiment"]) == ("reordering", "table_reordering")
    assert log["curves"]["updates"] == [10, 20, 30]
    assert log["curves"]["valid_loss"][-1] < log["curves"]["valid_loss"][0]


@pytest.mark.parametrize("beam", ["1", "4"])
def test_every_sentence_is_translated(trained, data, beam):
    translations = generate(data, trained / "checkpoint_best.pt", "--beam", beam)
    assert sorted(translations) == list(range(SENTENCES["test"]))


def test_a_validation_that_misses_sentences_is_an_error(train_row, tmp_path, monkeypatch, capfd):
    from fwp_fairseq.tasks.translation import FastWeightTranslationTask

    # as fairseq does with sentences that are too long where it is told to go on without them
    monkeypatch.setattr(FastWeightTranslationTask, "filter_indices_by_size", lambda task, indices, *_: indices[:-3])
    assert train_row(tmp_path, "optimization.max_update=2") != 0
    assert "validation scored 48 sentences of 51" in capfd.readouterr().err


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(train_row, trained, tmp_path):
    [middle] = trained.glob("checkpoint_*_20.pt")
    assert train_row(tmp_path, "row=performer_64", f"checkpoint.restore_file='{middle}'") == 0
    ours, theirs = (parameters(folder / "checkpoint_last.pt") for folder in (tmp_path, trained))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "encoder.layers.0.self_attn.feature_map.omega" in theirs
    assert log_of(tmp_path)["curves"] == log_of(trained)["curves"]


@pytest.mark.parametrize("change", ["dataset.max_tokens=90", "optimization.update_freq=[2]"])
def test_a_run_is_not_resumed_at_a_wrong_place(train_row, trained, tmp_path, capfd, change):
    last = trained / "checkpoint_last.pt"
    assert train_row(tmp_path, "row=performer_64", f"checkpoint.restore_file='{last}'", "optimization.max_update=40", change) != 0
    error = capfd.readouterr().err
    assert "'max_tokens': 150" in error and "checkpoint.save_dir" in error
    assert list(tmp_path.glob("*.pt")) == []


def test_divergence_ends_the_training_and_is_logged(train_row, tmp_path):
    assert train_row(tmp_path, "optimization.lr=[1.0e+30]", "task.divergence_span=5") == 0
    log = log_of(tmp_path)
    assert log["status"] == "diverged" and log["updates"] < 10 and log["reason"]
    assert not (tmp_path / "crash.pt").exists()


def test_bfloat16_trains_on_cpus(train_row, tmp_path):
    assert train_row(tmp_path, "common.bf16=true", "row=elu_delta", "optimization.max_update=20") == 0
    first, last = log_of(tmp_path)["curves"]["valid_loss"]
    assert last < first


def test_another_dictionary_than_the_checkpoints_is_refused(train_row, trained, tmp_path, capfd):
    other = write_pairs(tmp_path / "other", "a b d c".split())  # as many words
    last = trained / "checkpoint_last.pt"
    overrides = [f"task.data='{other}'", "row=performer_64", f"checkpoint.restore_file='{last}'"]
    assert train_row(tmp_path / "out", *overrides, "optimization.max_update=40") != 0
    assert "its dictionary is not the one" in capfd.readouterr().err
    with pytest.raises(ValueError, match="its dictionary is not the one"):
        generate(other, last)


def test_alignments_are_refused_ahead_of_translating(trained, data):
    with pytest.raises(ValueError, match="print_alignment"):
        generate(data, trained / "checkpoint_best.pt", "--print-alignment")


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["task.data=/nowhere"], ["task.data=/nowhere", "dict.src.txt", "data_prep"]),
        (["row=no_such_row"], ["no_such_row", "linear"]),
        (["model.heads=3"], ["d_model=32", "heads=3"]),
        (["row=performer_64", "model.m=null"], ["m:", "favor"]),
        (["model.attention_normalization=both"], ["attention_normalization", "'both'"]),
        (["task.divergence_span=0"], ["task.divergence_span", "0"]),
    ],
    ids=lambda value: value[-1] if "." in value[-1] else "",
)
def test_bad_settings_fail_with_their_name_and_write_nothing(train_row, tmp_path, capfd, overrides, words):
    assert train_row(tmp_path / "out", *overrides) != 0
    text = capfd.readouterr().err
    assert all(word in text for word in words), text
    assert list((tmp_path / "out").glob("*")) == []


@pytest.mark.slow
def test_a_new_process_translates_the_same(trained, data, tmp_path):
    checkpoint = trained / "checkpoint_best.pt"
    here = generate(data, checkpoint, "--beam", "4")
    arguments = [str(data), "--user-dir", "fwp_fairseq", "--task", "fwp_translation", "--path", str(checkpoint)]
    arguments += ["--results-path", str(tmp_path), "--batch-size", "7", "--cpu", "--beam", "4"]
    subprocess.run([sys.executable, "-m", "fairseq_cli.generate", *arguments], cwd=ROOT, check=True, capture_output=True)
    there = read_generated(tmp_path / "generate-test.txt")
    assert {number: words for number, (_, words) in there.items()} == {number: words for number, (_, words) in here.items()}
    for number, (score, _) in there.items():
        assert float(score) == pytest.approx(float(here[number][0]), abs=1e-3)  # other batches, other roundings

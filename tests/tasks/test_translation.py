"""Training translation models: every variant learns a tiny language, every sentence counts, and bad input."""

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = {"train": 500, "valid": 51, "test": 27}  # no multiples of 8
TINY = (
    "model.d_model=32 model.heads=1 model.d_ffn=32 model.encoder_layers=1 model.decoder_layers=1 model.dropout=0 "
    "dataset.max_tokens=150 dataset.validate_interval_updates=60 optimization.max_update=180 optimization.lr=[0.01] "
    "lr_scheduler.warmup_updates=20 checkpoint.keep_interval_updates=9"
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
    save_dir = tmp_path_factory.mktemp("trained") / "linear"
    assert train_row(save_dir, "row=linear") == 0
    return save_dir


def log_of(save_dir):
    return json.loads((save_dir / "training.json").read_text())


def parameters(checkpoint):
    return torch.load(checkpoint)["model"]


def generate(data, checkpoint, *options):
    """Sources and their best hypotheses, as `fairseq-generate` prints them, by number."""
    from fairseq import options as fairseq_options
    from fairseq_cli import generate as command

    results = checkpoint.parent / "generated"
    arguments = [str(data), "--task", "fwp_translation", "--path", str(checkpoint), "--results-path", str(results)]
    parser = fairseq_options.get_generation_parser()
    command.main(fairseq_options.parse_args_and_arch(parser, [*arguments, "--batch-size", "16", "--cpu", *options]))
    return read_generated(results / "generate-test.txt")


def read_generated(path):
    sources, hypotheses = {}, {}
    for line in path.read_text().splitlines():
        kind, _, rest = line.partition("-")
        if kind in ("S", "H"):
            number, *fields = rest.split("\t")
            (sources if kind == "S" else hypotheses)[int(number)] = fields[-1]
    return sources, hypotheses


def right(sources, hypotheses):
    return sum(hypotheses[number].lower().split()[::-1] == source.split() for number, source in sources.items())


ROWS = {
    "transformer": ["row=transformer"],
    "linear": [],
    "performer": ["row=performer_64"],
    "dpfp": ["row=dpfp_256"],
    "elu_delta": ["row=elu_delta"],
    "dpfp_delta": ["row=dpfp_256_delta"],
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_learns_to_translate_backwards(train_row, trained, data, tmp_path, row):
    save_dir = tmp_path
    if row == "linear":
        save_dir = trained
    else:
        assert train_row(save_dir, *ROWS[row]) == 0
    sources, hypotheses = generate(data, save_dir / "checkpoint_best.pt", "--beam", "4", "--lenpen", "0.6")
    assert sorted(hypotheses) == list(range(SENTENCES["test"]))  # none is left out
    assert right(sources, hypotheses) >= 24, hypotheses
    log = log_of(save_dir)
    assert (log["status"], log["updates"], log["setting"], log["experiment"]) == ("finished", 120, "reordering", "table_reordering")
    assert log["curves"]["updates"] == [40, 80, 120]
    assert log["curves"]["valid_loss"][-1] < log["curves"]["valid_loss"][0]

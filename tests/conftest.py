"""What several tests need: fairseq's training command in this process, and a tiny trained language model."""

import json
import logging
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_terminal_summary(terminalreporter):
    """A skipped test is a thing that was not proven: the summary names each, and says why."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.line(f"not run: {report.nodeid} ({str(reason).removeprefix('Skipped: ')})")


@pytest.fixture(scope="session")
def train():
    """`train(config, *overrides)` runs `fairseq-hydra-train` on a config of configs/synthetic (or of another
    `experiment`) and returns its exit status. Loading fairseq takes longer than such a run, hence in process."""
    from fairseq_cli import hydra_train

    def run(config, *overrides, experiment="synthetic"):
        argv, folder, handlers = sys.argv, os.getcwd(), logging.root.handlers[:]
        options = ["--config-dir", f"configs/{experiment}", "--config-name", config]
        sys.argv = ["fairseq-hydra-train", *options, *overrides]
        os.chdir(ROOT)
        try:
            hydra_train.cli_main()
        except SystemExit as stop:
            return stop.code or 0
        finally:
            sys.argv = argv
            os.chdir(folder)
            logging.root.handlers[:] = handlers  # Hydra's write to an output that pytest closes after the test
        return 0

    return run


# A language model of a few thousand parameters on a text of 1,000 words.
TINY_LM = (
    "model.d_model=16 model.layers=2 model.heads=2 model.d_ffn=32 model.cutoffs='10,20' task.tokens_per_sample=16 "
    "dataset.batch_size=4 dataset.validate_interval_updates=20 optimization.max_update=60 lr_scheduler.warmup_updates=4 "
    "optimization.lr=[0.01] checkpoint.keep_interval_updates=9"
).split()


@pytest.fixture(scope="session")
def lm_data(tmp_path_factory):
    """A data folder as data_prep/ makes it: 30 words, each mostly followed by the same one."""
    import torch
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import make_builder

    folder, draw = tmp_path_factory.mktemp("data-bin"), random.Random(1)
    dictionary = Dictionary()
    words = [dictionary.add_symbol(f"w{number}", n=100 - number) for number in range(30)]
    dictionary.save(str(folder / "dict.txt"))
    stats = {}
    for split, lines in (("train", 100), ("valid", 21), ("test", 15)):
        builder, tokens = make_builder(str(folder / f"{split}.bin"), impl="mmap", vocab_size=len(dictionary)), 0
        for _ in range(lines):
            line = [draw.choice(words)]
            while len(line) < 9:
                line.append(words[(7 * line[-1] + 1) % 30] if draw.random() < 0.8 else draw.choice(words))
            builder.add_item(torch.tensor([*line, dictionary.eos()]))
            tokens += len(line) + 1
        builder.finalize(str(folder / f"{split}.idx"))
        stats[split] = {"lines": lines, "tokens": tokens, "words": tokens - lines, "bytes": 3 * tokens}
    (folder / "text_stats.json").write_text(json.dumps(stats))
    return folder


@pytest.fixture(scope="session")
def train_lm(train, lm_data):
    """`train_lm(save_dir, *overrides)` trains the tiny model and returns the exit status."""

    def run(save_dir, *overrides):
        folders = [f"task.data='{lm_data}'", f"checkpoint.save_dir='{save_dir}'"]
        return train("mini", *TINY_LM, *folders, *overrides, experiment="wikitext103")

    return run


@pytest.fixture(scope="session")
def trained_lm(train_lm, lm_data, tmp_path_factory):
    """The tiny model, trained: its checkpoints, its data, its training log."""
    save_dir = tmp_path_factory.mktemp("trained") / "delta"
    assert train_lm(save_dir) == 0
    log = json.loads((save_dir / "training.json").read_text())
    return SimpleNamespace(save_dir=save_dir, checkpoint=save_dir / "checkpoint_best.pt", data=lm_data, log=log)


@pytest.fixture(scope="session")
def streaming_lm(train_lm, lm_data, tmp_path_factory):
    """The same with its state carried along the stream and no positions: checkpoints of updates 7, 14 and 21, the
    last of them in the second epoch."""
    save_dir = tmp_path_factory.mktemp("streaming") / "delta"
    assert train_lm(save_dir, *STREAMING, "optimization.max_update=21", "dataset.validate_interval_updates=7") == 0
    log = json.loads((save_dir / "training.json").read_text())
    return SimpleNamespace(save_dir=save_dir, checkpoint=save_dir / "checkpoint_best.pt", data=lm_data, log=log)


STREAMING = ["task.carry_state=true", "model.positional_encoding=false", "dataset.batch_size_valid=1"]

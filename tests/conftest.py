"""What several tests need: fairseq's training command in this process, from the repository root."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def train():
    """`train(config, *overrides)` runs `fairseq-hydra-train` on a config of configs/synthetic and returns its exit
    status. Loading fairseq takes longer than such a run, hence in process."""
    from fairseq_cli import hydra_train

    def run(config, *overrides):
        argv, folder = sys.argv, os.getcwd()
        sys.argv = ["fairseq-hydra-train", "--config-dir", "configs/synthetic", "--config-name", config, *overrides]
        os.chdir(ROOT)
        try:
            hydra_train.cli_main()
        except SystemExit as stop:
            return stop.code or 0
        finally:
            sys.argv = argv
            os.chdir(folder)
        return 0

    return run

"""What a language model's training leaves for its record: curves, time and outcome, in `training.json`."""

import json
import os
import resource
import time
from pathlib import Path

import torch

FILE = "training.json"


class TrainingLog:
    """Collects losses (nats a token) and writes the file. `state_dict` makes it part of a checkpoint, so that a
    resumed run goes on with its curves and its time."""

    def __init__(self):
        self.curves = {"updates": [], "train_loss": [], "valid_loss": []}
        self.trained_updates = self.trained_tokens = 0
        self.recent_loss, self.recent_tokens = 0.0, 0
        self.previous_seconds = 0.0
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.previous_seconds + time.monotonic() - self.started

    def trained(self, loss_sum: float, tokens: int) -> None:
        """Take in one update: the summed loss of its tokens."""
        self.trained_updates += 1
        self.trained_tokens += tokens
        self.recent_loss += loss_sum
        self.recent_tokens += tokens

    def validated(self, update: int, loss: float) -> None:
        """A point of the curves: the mean training loss since the last one, and the loss on the first subset."""
        if update in self.curves["updates"][-1:]:
            return
        self.curves["updates"].append(update)
        self.curves["train_loss"].append(self.recent_loss / max(self.recent_tokens, 1))
        self.curves["valid_loss"].append(loss)
        self.recent_loss, self.recent_tokens = 0.0, 0

    def write(self, cfg, status: str, reason: str | None, update: int) -> None:
        """Write `save_dir/training.json`, whole or not at all. status: running, finished or diverged."""
        content = {
            "status": status,
            "reason": reason,
            "experiment": cfg.experiment,
            "row": cfg.row,
            "setting": cfg.setting,
            "seed": cfg.seed,
            "updates": update,
            "tokens": self.trained_tokens,
            "wall_seconds": round(self.seconds, 1),
            "peak_memory_mb": peak_memory_mb(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "curves": self.curves,
        }
        path = Path(cfg.save_dir) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1))
        os.replace(temporary, path)

    def state_dict(self) -> dict:
        return {**{k: v for k, v in vars(self).items() if k != "started"}, "previous_seconds": self.seconds}

    @classmethod
    def from_state_dict(cls, state: dict):
        log = cls()
        vars(log).update(state)
        return log


def read_training_log(folder) -> dict | None:
    """Content of the file in a folder of checkpoints; None where there is none."""
    path = Path(folder) / FILE
    return json.loads(path.read_text()) if path.exists() else None


def peak_memory_mb() -> float:
    """Of the GPU where there is one, else of this process."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1)

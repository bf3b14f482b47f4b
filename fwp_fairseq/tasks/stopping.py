"""When a synthetic run ends: the authors' rule, and the history of evaluations it needs."""

import math
from dataclasses import asdict, dataclass, field


@dataclass
class StoppingRule:
    """Stop at a loss of `threshold` or below, or after more than `patience` evaluations in a row without a new best.
    NaN is never a best.

    The history (`updates`, `losses`) is the evaluation curve; `state_dict` makes it part of a checkpoint.
    """

    threshold: float
    patience: int
    updates: list = field(default_factory=list)
    losses: list = field(default_factory=list)

    def observe(self, update: int, loss: float) -> str | None:
        """Take in one evaluation; the reason to stop, or None to go on."""
        self.updates.append(update)
        self.losses.append(loss)
        if loss <= self.threshold:
            return "threshold"
        if len(self.losses) - (self.best_index() + 1) > self.patience:
            return "patience"
        return None

    def best_index(self) -> int:
        """Index of the first evaluation with the lowest loss; -1 where all were NaN."""
        numbers = [i for i, loss in enumerate(self.losses) if not math.isnan(loss)]
        return min(numbers, key=self.losses.__getitem__, default=-1)

    def summary(self) -> dict:
        best = self.best_index()
        return {
            "best_loss": self.losses[best] if best >= 0 else math.nan,
            "best_update": self.updates[best] if best >= 0 else 0,
            "last_loss": self.losses[-1] if self.losses else math.nan,
        }

    def state_dict(self) -> dict:
        return asdict(self)

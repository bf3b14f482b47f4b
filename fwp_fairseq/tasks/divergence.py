"""When a training has diverged: a loss that is no number, or one that stays above where it began."""

import math
from dataclasses import asdict, dataclass


@dataclass
class DivergenceRule:
    """Diverged at a loss that is not finite, or after `span` updates in a row with a loss above the first update's.

    `state_dict` makes the rule part of a checkpoint.
    """

    span: int
    first_loss: float | None = None
    above: int = 0

    def observe(self, loss: float) -> str | None:
        """Take in the loss of one update; why the training has diverged, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if self.first_loss is None:
            self.first_loss = loss
        self.above = self.above + 1 if loss > self.first_loss else 0
        if self.above >= self.span:
            return f"the loss was above that of the first update, {self.first_loss:.2f}, for {self.span} updates"
        return None

    def state_dict(self) -> dict:
        return asdict(self)

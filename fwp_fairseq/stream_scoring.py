"""Perplexity in one pass over a text: consecutive segments, the state carried from each to the next, no context cut."""

import torch

from fwp_fairseq.sliding_window import Score

FIRST_EDGE = 64  # tokens in the first span of the curve
EDGES_PER_DOUBLING = 2


class PositionCurve:
    """The mean loss in spans of the text that grow by a constant factor, for a logarithmic axis."""

    def __init__(self, predictions: int):
        growth, edges = 2 ** (1 / EDGES_PER_DOUBLING), [min(FIRST_EDGE, predictions)]
        while edges[-1] < predictions:
            edges.append(min(predictions, round(FIRST_EDGE * growth ** len(edges))))
        # a last span of a few tokens would say little
        if len(edges) > 1 and predictions - edges[-2] < edges[-2] / 4:
            del edges[-2]
        self.edges = torch.tensor(edges)
        self.sums = torch.zeros(len(edges), dtype=torch.float64)
        self.seen = 0

    def add(self, losses) -> None:
        """Take in the losses (n,) of the predictions that come next."""
        positions = torch.arange(self.seen, self.seen + len(losses))
        self.sums.index_add_(0, torch.bucketize(positions, self.edges, right=True), losses.double().cpu())
        self.seen += len(losses)

    def losses(self) -> list:
        """Mean loss (nats) of each span, which ends at the entry of `edges`."""
        return (self.sums / self.edges.diff(prepend=torch.zeros(1, dtype=torch.int64))).tolist()


@torch.no_grad()
def score_stream(model, tokens, segment: int, progress=None) -> tuple[Score, PositionCurve]:
    """Score of a text under a language model of this package that carries a state, in evaluation mode.

    tokens: (N,) int64; each but the first is predicted once. segment: tokens read at once, which for fast weights
    changes nothing but the speed. `progress(score, n)` is called after every segment.
    """
    if not 1 <= segment < len(tokens):
        raise ValueError(f"window: must be between 1 and the {len(tokens) - 1:,} predictions of the split, got {segment}")
    device = model.decoder.embedding.weight.device
    model.eval()
    score, curve, state = Score(), PositionCurve(len(tokens) - 1), None
    for start in range(0, len(tokens) - 1, segment):
        text = tokens[start : start + segment + 1].to(device)
        hidden, extra = model(text[None, :-1], state=state)
        state = extra["state"]
        losses = model.decoder.adaptive_softmax(hidden[0], text[1:])
        curve.add(losses)
        score.loss += float(losses.double().sum())
        score.tokens += len(losses)
        if progress is not None:
            progress(score, len(losses))
    return score, curve

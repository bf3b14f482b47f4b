"""Perplexity with a sliding window: every token of a text is predicted once, with the longest context there is.

The first window is scored whole; each later one moves by `stride` tokens and scores only the last `stride`, so all
but the first window's predictions have `window - stride + 1` tokens of context or more. Stride 1 is the paper's.
"""

from dataclasses import dataclass

import torch


@dataclass
class Score:
    """The summed loss of `tokens` predictions, in nats."""

    loss: float = 0.0
    tokens: int = 0


def check_window(predictions: int, window: int, stride: int) -> None:
    """`ValueError` naming the argument unless 1 <= stride <= window <= predictions."""
    if not 1 <= window <= predictions:
        raise ValueError(f"window: must be between 1 and the {predictions:,} predictions of the split, got {window}")
    if not 1 <= stride <= window:
        raise ValueError(f"stride: must be between 1 and the window of {window}, got {stride}")


def window_batches(tokens, window: int, stride: int, batch: int):
    """Yields (windows, scored): (n, window + 1) symbols, of which the last `scored` are to be predicted.

    tokens: (N,) int64. The `scored` parts follow each other and cover tokens 1 to N - 1. The last window ends with
    the text, so that it has its full context.
    """
    check_window(len(tokens) - 1, window, stride)
    yield tokens[None, : window + 1], window
    windows = tokens.unfold(0, window + 1, stride)[1:]
    for first in range(0, len(windows), batch):
        yield windows[first : first + batch], stride
    rest = (len(tokens) - 1 - window) % stride
    if rest:
        yield tokens[None, -window - 1 :], rest


@torch.no_grad()
def score_text(model, tokens, window: int, stride: int = 1, batch: int = 64, progress=None) -> Score:
    """Score of a text under a language model of this package, in evaluation mode, on the model's device.

    tokens: (N,) int64. The output layer runs only for the positions that are scored. `progress(score, n)` is called
    after every batch with the score so far and the number of new predictions.
    """
    device = model.decoder.embedding.weight.device
    model.eval()
    score = Score()
    for windows, scored in window_batches(tokens, window, stride, batch):
        windows = windows.to(device)
        hidden, _ = model(windows[:, :-1])
        hidden, target = hidden[:, -scored:].flatten(0, 1), windows[:, -scored:].flatten()
        score.loss += float(model.decoder.adaptive_softmax(hidden, target).double().sum())
        score.tokens += target.numel()
        if progress is not None:
            progress(score, target.numel())
    return score

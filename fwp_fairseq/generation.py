"""Text from a language model, symbol by symbol: `for symbol in generate(model, prompt, 100, window, Sampler(...))`."""

from dataclasses import dataclass

import torch


@dataclass
class Sampler:
    """Draws a symbol from log-probabilities: temperature first, then the `top_k` likeliest, of these the fewest that
    together have `top_p`. Temperature 0 takes the likeliest.

    One seed gives the same symbols each time. Raises `ValueError` naming the argument that does not fit.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self):
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature: must be >= 0 and finite, got {self.temperature:g}; 0 takes the likeliest symbol")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: must be >= 1, got {self.top_k}; leave it out to draw from all symbols")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: must be above 0 and at most 1, got {self.top_p:g}; 1 draws from all symbols")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: must be >= 0 and below 2^63, got {self.seed}")
        self.generator = torch.Generator().manual_seed(self.seed)

    def __call__(self, log_probs) -> int:
        """log_probs: (symbols,), on any device."""
        if log_probs.isnan().any():
            raise ValueError("the model's probabilities are not numbers: its training diverged, take another checkpoint")
        if self.temperature == 0:
            return int(log_probs.argmax())
        log_probs = log_probs.float().cpu()  # drawn there, so that a seed means the same everywhere
        symbols = torch.arange(len(log_probs))
        if self.top_k is not None and self.top_k < len(log_probs):
            log_probs, symbols = log_probs.topk(self.top_k)
        # the largest is taken off first: divided by a small temperature, the others may become -inf, it may not
        probabilities = ((log_probs - log_probs.max()) / self.temperature).softmax(0)
        if self.top_p < 1:
            probabilities, order = probabilities.sort(descending=True)
            symbols = symbols[order]
            # as many as are needed: those ahead of which less than top_p is reached
            probabilities = probabilities[probabilities.cumsum(0) - probabilities < self.top_p]
        return int(symbols[torch.multinomial(probabilities, 1, generator=self.generator)])


def carries_its_state(model) -> bool:
    """Whether a model can go on from a state of constant size: one without positions whose state does not grow."""
    return model.decoder.goes_on and model.state_is_bounded


def generate(model, prompt, length: int, window: int, sampler: Sampler):
    """Yields `length` symbols that follow `prompt`, a list of at least one symbol; never <unk>, <pad> or <s>.

    A model that `carries_its_state` reads every symbol once, the prompt `window` symbols at a time; any other reads
    the last `window` symbols anew for every symbol that it yields.
    """
    read = read_on if carries_its_state(model) else read_anew
    dictionary = model.decoder.dictionary
    never = [dictionary.unk(), dictionary.pad(), dictionary.bos()]
    model.eval()
    text, state = list(prompt), None
    unread = text
    for _ in range(length):
        with torch.inference_mode():
            hidden, state = read(model, text, unread, state, window)
            log_probs = model.decoder.adaptive_softmax.get_log_prob(hidden)
            log_probs[never] = -torch.inf
            symbol = sampler(log_probs)
        unread = [symbol]
        text = [*text, symbol][-window:]
        yield symbol


def read_on(model, text, unread, state, window):
    """(hidden state (d_model,) of the last symbol, state) after the symbols that are new."""
    for start in range(0, len(unread), window):
        hidden, extra = model(as_batch(model, unread[start : start + window]), state=state)
        state = extra["state"]
    return hidden[0, -1], state


def read_anew(model, text, unread, state, window):
    hidden, _ = model(as_batch(model, text[-window:]))
    return hidden[0, -1], None


def as_batch(model, symbols):
    return torch.tensor([symbols], device=model.decoder.embedding.weight.device)

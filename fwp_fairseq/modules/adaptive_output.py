"""Adaptive softmax tied to the input embedding (Grave et al. 2017): the output layer of the language models.

Every word has its embedding as output weight and a bias; every cluster of rarer words has a weight and a bias in the
head. Unlike fairseq's adaptive softmax it has no projections, and every word's own probability counts.
"""

import torch
import torch.nn.functional as F
from torch import nn


class AdaptiveOutput(nn.Module):
    """p(w) = head(w) for the `cutoffs[0]` most frequent words, and head(cluster) * tail(w | cluster) for the others.

    Words are numbered by falling frequency; a fairseq symbol is a word's number plus `first_symbol` (the symbols
    before that never occur and have probability 0).

    Args:
        embedding: (words, d_model), shared with the input
        cutoffs: rising numbers of words where clusters begin; empty for one plain softmax
        first_symbol: of the fairseq dictionary that is a word

    Raises `ValueError` where the cutoffs do not rise or reach the number of words.
    """

    def __init__(self, embedding: nn.Embedding, cutoffs: tuple, first_symbol: int):
        super().__init__()
        words, d_model = embedding.weight.shape
        bounds = (0, *cutoffs, words)
        if any(low >= high for low, high in zip(bounds, bounds[1:])):
            raise ValueError(
                f"cutoffs: must rise and stay below the {words:,} words of the vocabulary, got "
                f"{','.join(map(str, cutoffs))}; give smaller ones, or none for a plain softmax"
            )
        self.embedding = embedding
        self.first_symbol = first_symbol
        self.head_size = bounds[1]
        self.clusters = tuple(zip(bounds[1:-1], bounds[2:]))
        self.bias = nn.Parameter(torch.zeros(words))
        self.cluster_weight = nn.Parameter(torch.empty(len(self.clusters), d_model))
        self.cluster_bias = nn.Parameter(torch.zeros(len(self.clusters)))

    def forward(self, hidden, target):
        """-ln p(target), in float32 or better: hidden (N, d_model), target symbols (N,) -> (N,)."""
        weights, word = self.weights(), target - self.first_symbol
        column = word
        for number, (low, _) in enumerate(self.clusters):
            column = torch.where(word >= low, self.head_size + number, column)
        loss = cross_entropy(self.head_logits(hidden, weights), column)
        for number, (low, high) in enumerate(self.clusters):
            inside = ((word >= low) & (word < high)).nonzero().squeeze(1)
            if inside.numel():
                tail = cross_entropy(self.tail_logits(hidden[inside], weights, number), word[inside] - low)
                loss = loss.index_add(0, inside, tail)
        return loss

    def get_log_prob(self, hidden, target=None):
        """ln p of every symbol, (..., d_model) -> (..., symbols): what fairseq's generator and scorer ask for."""
        weights = self.weights()
        head = log_softmax(self.head_logits(hidden, weights))
        never = head.new_full((*hidden.shape[:-1], self.first_symbol), -torch.inf)
        parts = [never, head[..., : self.head_size]]
        for number in range(len(self.clusters)):
            cluster = head[..., self.head_size + number, None]
            parts.append(cluster + log_softmax(self.tail_logits(hidden, weights, number)))
        return torch.cat(parts, dim=-1)

    def weights(self):
        """The output weights of the head's words and of each cluster. Cut at once: the gradient of every single slice
        would be as large as the embedding."""
        sizes = [self.head_size, *(high - low for low, high in self.clusters)]
        return self.embedding.weight.split(sizes)

    def head_logits(self, hidden, weights):
        weight = torch.cat((weights[0], self.cluster_weight))
        return F.linear(hidden, weight, torch.cat((self.bias[: self.head_size], self.cluster_bias)))

    def tail_logits(self, hidden, weights, number):
        low, high = self.clusters[number]
        return F.linear(hidden, weights[1 + number], self.bias[low:high])


def cross_entropy(logits, target):
    return F.cross_entropy(at_least_float32(logits), target, reduction="none")


def log_softmax(logits):
    return torch.log_softmax(at_least_float32(logits), dim=-1)


def at_least_float32(x):
    return x if x.dtype == torch.float64 else x.float()

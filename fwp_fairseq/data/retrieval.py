"""Key-value sequences for the synthetic retrieval experiments (section 6.1 of the paper), drawn by counter.

Every number is a hash of (seed, purpose, sequence index, position), so a sequence is the same whichever worker,
batch or resumed run asks for it, and a whole batch is drawn by a few numpy operations.
"""

import numpy as np
import torch
from fairseq.data import FairseqDataset

MAX_EVAL_QUERIES = 200


def hashed_bits(seed: int, purpose: int, index: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Independent uint64 numbers for every pair of the broadcast `index` and `position` (splitmix64's finaliser,
    Steele et al. 2014, applied once an argument)."""
    bits = np.uint64(seed)
    with np.errstate(over="ignore"):
        for word in (np.uint64(purpose), np.asarray(index, np.uint64), np.asarray(position, np.uint64)):
            bits = bits * np.uint64(0x9E3779B97F4A7C15) + word + np.uint64(1)
            bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            bits = bits ^ (bits >> np.uint64(31))
    return bits


def draw(seed, purpose, index, length, symbols, repetition) -> np.ndarray:
    """(len(index), length) symbols below `symbols`: with repetition uniform draws, without it a random order."""
    position = np.arange(length if repetition else symbols)
    bits = hashed_bits(seed, purpose, index[:, None], position[None, :])
    if repetition:
        return (bits % np.uint64(symbols)).astype(np.int64)
    return np.argsort(bits, axis=1)[:, :length]


KEYS, VALUES, QUERY = range(3)  # purposes: keeps the three draws of one sequence apart


def draw_pairs(seed, index, length, symbols, repetition):
    """`keys` and `values`, each (len(index), length) int64, for the sequences numbered `index`."""
    keys = draw(seed, KEYS, index, length, symbols, repetition)
    return keys, draw(seed, VALUES, index, length, symbols, repetition)


def last_values(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The value written last to each query: keys, values (B, L), queries (B, Q), all occurring -> (B, Q)."""
    length = keys.shape[1]
    matches = queries[:, :, None] == keys[:, None, ::-1]
    return np.take_along_axis(values, length - 1 - matches.argmax(-1), axis=1)


class RetrievalTrainingSet(FairseqDataset):
    """Training sequences, each with one query: the key at a uniformly drawn position.

    Item `i` is sequence `i`; the items of a batch are drawn together. Batches hold consecutive sequences, so that
    update `u` of batch size `b` sees sequences `u*b ... u*b + b - 1`.

    Args:
        size: number of sequences (updates × batch size)
        length: pairs a sequence (L)
        symbols: number of keys, and of values (S)
        repetition: draw keys and values with replacement (the update-rule setting)
        seed: of the experiment
    """

    supports_fetch_outside_dataloader = False  # nobody needs a first batch drawn just to look at it

    def __init__(self, size: int, length: int, symbols: int, repetition: bool, seed: int):
        self.size_, self.length, self.symbols, self.repetition, self.seed = size, length, symbols, repetition, seed

    def __len__(self):
        return self.size_

    def size(self, index):
        return self.length

    def num_tokens(self, index):
        return self.length

    def __getitem__(self, index):
        return self.__getitems__([index])

    def __getitems__(self, indices):
        """One batch as torch's fetcher asks for it: a list with a single element, the whole batch."""
        index = np.asarray(indices)
        keys, values = draw_pairs(self.seed, index, self.length, self.symbols, self.repetition)
        asked = (hashed_bits(self.seed, QUERY, index, np.zeros(1)) % np.uint64(self.length)).astype(np.int64)
        queries = np.take_along_axis(keys, asked[:, None], axis=1)
        targets = last_values(keys, values, queries)
        return [{"keys": keys, "values": values, "queries": queries, "targets": targets}]

    def collater(self, samples):
        batch = {name: torch.from_numpy(array) for name, array in samples[0].items()}
        return {"net_input": {k: batch[k] for k in ("keys", "values", "queries")}, "target": batch["targets"]}

    def batch_by_size(self, indices, max_tokens=None, max_sentences=None, required_batch_size_multiple=1):
        return np.array_split(indices, range(max_sentences, len(indices), max_sentences))


class RetrievalEvaluationSet(FairseqDataset):
    """One item: fresh sequences for the evaluation that `begin_evaluation(number)` announces. Of several processes each
    gets the same one.

    Every key that occurs is queried, at most 200 a sequence (a random choice where there are more). The arrays are
    padded to the sequence with most queries; `target` is -1 on padding.
    """

    supports_fetch_outside_dataloader = False

    def __init__(
        self, sequences: int, length: int, symbols: int, repetition: bool, seed: int, processes: int = 1
    ):
        self.sequences, self.length, self.symbols, self.repetition, self.seed = (
            sequences, length, symbols, repetition, seed,
        )
        self.processes = processes
        self.evaluation = 0

    # fairseq would keep the iterator, and its worker processes the number of the first evaluation
    can_reuse_epoch_itr_across_epochs = False

    def begin_evaluation(self, number: int) -> None:
        self.evaluation = number

    def __len__(self):
        return self.processes

    def size(self, index):
        return self.length

    def num_tokens(self, index):
        return self.length

    def batch_by_size(self, indices, max_tokens=None, max_sentences=None, required_batch_size_multiple=1):
        # one each; fairseq would drop what is no multiple of `required_batch_size_multiple`
        return np.array_split(indices, len(indices))

    def __getitem__(self, _):
        index = np.arange(self.sequences) + self.evaluation * self.sequences
        keys, values = draw_pairs(self.seed, index, self.length, self.symbols, self.repetition)
        # a random order of all keys, those that occur first; what is past their number is padding
        occurs = np.zeros((self.sequences, self.symbols), bool)
        np.put_along_axis(occurs, keys, True, axis=1)
        order = hashed_bits(self.seed, QUERY, index[:, None], np.arange(self.symbols)[None, :]) >> np.uint64(1)
        order = np.where(occurs, order, order | np.uint64(1 << 63))
        count = np.minimum(occurs.sum(1), MAX_EVAL_QUERIES)
        queries = np.argsort(order, axis=1)[:, : count.max()]
        asked = np.arange(count.max())[None, :] < count[:, None]
        queries = np.where(asked, queries, keys[:, :1])
        targets = np.where(asked, last_values(keys, values, queries), -1)
        return {"keys": keys, "values": values, "queries": queries, "targets": targets}

    def collater(self, samples):
        batch = {name: torch.from_numpy(array) for name, array in samples[0].items()}
        return {"net_input": {k: batch[k] for k in ("keys", "values", "queries")}, "target": batch["targets"]}

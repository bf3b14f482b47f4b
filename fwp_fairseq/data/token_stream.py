"""The text of a split as one stream of tokens, and batches whose rows are contiguous parts of it.

Row r of every batch goes on where row r of the batch before ended, as the authors train; the order is the same in
every epoch.
"""

import os

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.indexed_dataset import (
    MMapIndexedDataset,
    data_file_path,
    index_file_path,
    infer_dataset_impl,
)


class DataFolderError(ValueError):
    """The data folder is not what `data_prep/` makes; the text says what to do."""


def load_tokens(folder: str, split: str, dictionary):
    """All tokens of `split` in order, as a one-dimensional array that stays on disk.

    Raises DataFolderError where the split is missing, empty, truncated, in another format, or of another dictionary.
    """
    prefix = os.path.join(folder, split)
    if not MMapIndexedDataset.exists(prefix):
        raise DataFolderError(
            f"task.data={folder}: there is no {split}.bin with {split}.idx; make them with data_prep/wikitext103.py or "
            "data_prep/mini_lm.py and name their data-bin folder"
        )
    if infer_dataset_impl(prefix) != "mmap":
        raise DataFolderError(f"{prefix}.idx: only fairseq-preprocess's format mmap is read (its default); make it again")
    index = MMapIndexedDataset.Index(index_file_path(prefix))
    expected, dtype = int(index.sizes.sum()), index.dtype
    found = os.path.getsize(data_file_path(prefix)) // dtype().itemsize
    if expected == 0:
        raise DataFolderError(f"{prefix}.bin is empty; run the data preparation again")
    if found != expected:
        raise DataFolderError(f"{prefix}.bin has {found} tokens, its index {expected}; run the data preparation again")
    tokens = np.memmap(data_file_path(prefix), dtype=dtype, mode="r")
    if tokens.max() >= len(dictionary) or tokens.min() <= dictionary.pad():
        raise DataFolderError(
            f"{prefix}.bin has symbols from {tokens.min()} to {tokens.max()}, and dict.txt words from "
            f"{dictionary.pad() + 1} to {len(dictionary) - 1}: it was made with another dictionary"
        )
    return tokens


class TokenStream(FairseqDataset):
    """Segments of a stream of N tokens, in which each token but the first is predicted once: N - 1 predictions.

    `batches` cuts the predictions into `rows` contiguous rows whose lengths differ by at most one, and hands them out
    segment by segment. Item `step * rows + row` is segment `step` of a row, its input tokens and the one after.

    Args:
        tokens: (N,) integers
        segment: predictions an item has, but for the last ones of the rows
        pad: symbol that fills up the rows of the last batches
    """

    def __init__(self, tokens, segment: int, pad: int):
        if not 1 <= segment < len(tokens):
            raise ValueError(
                f"task.tokens_per_sample: must be between 1 and the {len(tokens) - 1} predictions of the split, got {segment}"
            )
        self.tokens, self.segment, self.pad = tokens, segment, pad
        self.predictions = len(tokens) - 1
        self.rows = 1

    def batches(self, batch_size: int, rows: int) -> list:
        """The batches of an epoch in order, each the items of `batch_size` neighbouring rows; lays out `rows` rows.

        `rows` is a multiple of `batch_size`: batch b, b + rows/batch_size and so on have the same rows. ValueError
        where there are more rows than predictions.
        """
        if rows > self.predictions:
            raise ValueError(f"dataset.batch_size: {rows} rows are more than the split's {self.predictions} predictions")
        self.rows = rows
        longest = -(-self.predictions // rows)
        steps = -(-longest // self.segment)
        return [range(first, first + batch_size) for first in range(0, steps * rows, batch_size)]

    def __len__(self):
        return self.rows * -(-(-(-self.predictions // self.rows)) // self.segment)

    def __getitem__(self, index):
        step, row = divmod(int(index), self.rows)
        length, longer = divmod(self.predictions, self.rows)  # the first rows have one more
        row_start = row * length + min(row, longer)
        row_end = row_start + length + (row < longer)
        start = min(row_start + step * self.segment, row_end)
        end = min(start + self.segment, row_end)
        return step, row, torch.from_numpy(self.tokens[start : end + 1].astype(np.int64))

    def size(self, index):
        return self.segment

    def num_tokens(self, index):
        return self.segment

    def collater(self, samples):
        """A batch: one segment of neighbouring rows, padded at the end. `segment` and `first_row` say which."""
        lengths = [len(text) - 1 for _, _, text in samples]
        # at the end of an epoch all rows of a batch may have come to their end
        source = torch.full((len(samples), max(1, *lengths)), self.pad)
        target = source.clone()
        for row, ((_, _, text), length) in enumerate(zip(samples, lengths)):
            source[row, :length] = text[:-1]
            target[row, :length] = text[1:]
        segment, first_row, _ = samples[0]
        return {
            "id": torch.tensor([step * self.rows + row for step, row, _ in samples]),
            "segment": segment,
            "first_row": first_row,
            "net_input": {"src_tokens": source, "src_lengths": torch.tensor(lengths)},
            "target": target,
            "nsentences": len(samples),
            "ntokens": sum(lengths),
        }

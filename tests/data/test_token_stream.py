"""Contiguous streams: nothing lost, every row goes on where it ended, however the rows are divided."""

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

from fwp_fairseq.data.token_stream import DataFolderError, TokenStream, load_tokens

PAD = 1


def stream(count, segment):
    return TokenStream(np.arange(100, 100 + count), segment, PAD)


def batches_of(dataset, batch_size, rows):
    return [dataset.collater([dataset[i] for i in batch]) for batch in dataset.batches(batch_size, rows)]


@pytest.mark.parametrize("count, segment, rows", [(100, 7, 4), (101, 7, 4), (60, 7, 8), (17, 5, 16), (50, 49, 1), (9, 1, 3)])
def test_every_token_but_the_first_is_predicted_once_by_the_one_before(count, segment, rows):
    seen = []
    for batch in batches_of(stream(count, segment), rows, rows):
        source, target = batch["net_input"]["src_tokens"], batch["target"]
        counts = target != PAD
        assert torch.equal(counts, source != PAD)
        assert torch.equal(source[counts] + 1, target[counts])
        assert batch["ntokens"] == counts.sum()
        assert batch["net_input"]["src_lengths"].tolist() == counts.sum(1).tolist()
        seen += target[counts].tolist()
    assert sorted(seen) == list(range(101, 100 + count))


def test_each_row_goes_on_where_it_ended():
    rows = [[], [], []]
    for batch in batches_of(stream(40, 4), 3, 3):
        for row, tokens in zip(rows, batch["net_input"]["src_tokens"]):
            row += tokens[tokens != PAD].tolist()
    assert rows == [list(range(100, 113)), list(range(113, 126)), list(range(126, 139))]


def test_rows_divided_over_processes_and_accumulation_are_the_same_rows():
    whole = batches_of(stream(101, 6), 8, 8)
    parts = batches_of(stream(101, 6), 2, 8)  # two processes that accumulate two batches, say
    assert len(parts) == 4 * len(whole)
    for step, batch in enumerate(whole):
        together = [row for part in parts[4 * step : 4 * step + 4] for row in part["target"].tolist()]
        expected = batch["target"].tolist()
        assert [[t for t in row if t != PAD] for row in together] == [[t for t in row if t != PAD] for row in expected]


def test_length_is_that_of_all_batches():
    dataset = stream(101, 6)
    batches = dataset.batches(4, 8)
    assert len(dataset) == sum(map(len, batches)) == 24


def test_more_rows_than_predictions_and_segments_longer_than_the_split_are_refused():
    with pytest.raises(ValueError, match="batch_size: 10 rows .* 9 predictions"):
        stream(10, 3).batches(10, 10)
    with pytest.raises(ValueError, match="tokens_per_sample: .* 9 predictions .* got 10"):
        stream(10, 10)


def make_dictionary(words="abc"):
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    return dictionary


def write_split(folder, sentences, impl="mmap"):
    builder = make_builder(str(folder / "train.bin"), impl=impl, vocab_size=10)
    for sentence in sentences:
        builder.add_item(torch.tensor(sentence))
    builder.finalize(str(folder / "train.idx"))


def test_tokens_come_in_the_order_of_the_text(tmp_path):
    write_split(tmp_path, [[4, 5, 2], [2], [6, 3, 2]])
    assert load_tokens(str(tmp_path), "train", make_dictionary()).tolist() == [4, 5, 2, 2, 6, 3, 2]


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda folder: (folder / "train.idx").unlink(), ["no train.bin with train.idx", "data_prep"]),
        (lambda folder: write_split(folder, []), ["empty"]),
        (lambda folder: (folder / "train.bin").write_bytes(b"\0\0"), ["1 tokens", "index 4"]),
        (lambda folder: write_split(folder, [[4, 7, 2]]), ["2 to 7", "another dictionary"]),
        (lambda folder: write_split(folder, [[4, 1, 2]]), ["1 to 4", "another dictionary"]),
        (lambda folder: write_split(folder, [[4, 2]], impl="cached"), ["mmap"]),
    ],
)
def test_damaged_data_is_named(tmp_path, damage, words):
    write_split(tmp_path, [[4, 5, 3, 2]])
    damage(tmp_path)
    with pytest.raises(DataFolderError) as error:
        load_tokens(str(tmp_path), "train", make_dictionary())
    assert all(word in str(error.value) for word in words), str(error.value)

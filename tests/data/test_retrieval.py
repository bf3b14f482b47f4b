"""The key-value sequences: what they hold, and that nothing but the seed decides them."""

import numpy as np
import pytest
import torch

from fwp_fairseq.data.retrieval import RetrievalEvaluationSet, RetrievalTrainingSet


def batches(dataset, workers, size=4, number=6):
    batches = [list(range(i * size, (i + 1) * size)) for i in range(number)]
    loader = torch.utils.data.DataLoader(
        dataset, batch_sampler=batches, collate_fn=dataset.collater, num_workers=workers
    )
    return list(loader)


def same(a, b):
    return all(torch.equal(a["net_input"][k], b["net_input"][k]) for k in a["net_input"]) and torch.equal(
        a["target"], b["target"]
    )


@pytest.mark.parametrize("repetition", [False, True])
def test_a_training_batch_asks_for_the_last_value_of_a_key_that_occurs(repetition):
    length = 26 if repetition else 13
    batch = batches(RetrievalTrainingSet(100, length, 13, repetition, seed=5), 0)[0]
    keys, values, queries = (batch["net_input"][k] for k in ("keys", "values", "queries"))
    assert keys.shape == values.shape == (4, length) and queries.shape == (4, 1)
    for row in range(4):
        if not repetition:
            assert sorted(keys[row].tolist()) == sorted(values[row].tolist()) == list(range(13))
        last = max(i for i in range(length) if keys[row, i] == queries[row, 0])
        assert values[row, last] == batch["target"][row, 0]


def test_a_short_sequence_without_repetition_has_distinct_symbols():
    batch = batches(RetrievalTrainingSet(100, 5, 50, False, seed=5), 0)[0]
    for sequence in [*batch["net_input"]["keys"], *batch["net_input"]["values"]]:
        assert len(set(sequence.tolist())) == 5 and int(sequence.max()) < 50


def test_the_number_of_workers_and_the_batch_size_do_not_change_a_sequence():
    dataset = RetrievalTrainingSet(100, 20, 10, True, seed=5)
    alone, shared = batches(dataset, 0), batches(dataset, 2)
    assert all(same(a, b) for a, b in zip(alone, shared, strict=True))
    single = batches(dataset, 0, size=1, number=24)
    assert all(
        torch.equal(single[i]["net_input"]["keys"][0], alone[i // 4]["net_input"]["keys"][i % 4]) for i in range(24)
    )


def test_every_step_and_every_seed_gets_other_sequences():
    drawn = batches(RetrievalTrainingSet(100, 20, 20, False, seed=5), 0)
    other = batches(RetrievalTrainingSet(100, 20, 20, False, seed=6), 0)
    keys = [tuple(row.tolist()) for batch in drawn + other for row in batch["net_input"]["keys"]]
    assert len(set(keys)) == len(keys) == 48


def test_draws_are_uniform():
    """Chi-squared over 16 symbols and over 16 queried positions: 30 would be exceeded once in 80 trials."""
    batch = RetrievalTrainingSet(10**6, 32, 16, True, seed=7).__getitems__(range(2000))[0]
    counts = np.bincount(batch["keys"].ravel(), minlength=16)
    assert ((counts - 4000) ** 2 / 4000).sum() < 30
    batch = RetrievalTrainingSet(10**6, 16, 16, False, seed=7).__getitems__(range(4000))[0]
    position = (batch["keys"] == batch["queries"]).argmax(1)
    counts = np.bincount(position, minlength=16)
    assert ((counts - 250) ** 2 / 250).sum() < 30


@pytest.mark.parametrize(
    "length, symbols, repetition", [(20, 20, False), (20, 20, True), (60, 30, True), (240, 240, False)]
)
def test_an_evaluation_asks_for_every_key_that_occurs_up_to_200(length, symbols, repetition):
    dataset = RetrievalEvaluationSet(5, length, symbols, repetition, seed=3)
    sample = dataset.collater([dataset[0]])
    keys, values, queries = (sample["net_input"][k] for k in ("keys", "values", "queries"))
    for row in range(5):
        asked = sample["target"][row] >= 0
        found = set(queries[row][asked].tolist())
        assert len(found) == int(asked.sum())
        occurring = set(keys[row].tolist())
        assert found == occurring if len(occurring) <= 200 else (len(found) == 200 and found < occurring)
        for query, target in zip(queries[row][asked], sample["target"][row][asked], strict=True):
            last = max(i for i in range(length) if keys[row, i] == query)
            assert values[row, last] == target


def test_each_evaluation_is_fresh_and_can_be_drawn_again():
    dataset = RetrievalEvaluationSet(5, 20, 20, False, seed=3)
    drawn = []
    for number in (100, 200, 100):
        dataset.begin_evaluation(number)
        drawn.append(dataset.collater([dataset[0]]))
    assert same(drawn[0], drawn[2]) and not same(drawn[0], drawn[1])

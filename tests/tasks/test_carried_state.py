"""Streaming: the state goes along each row of text, through epochs, accumulation, interruptions and validation."""

import math

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from fwp_fairseq.data.token_stream import TokenStream, load_tokens
from fwp_fairseq.tasks.carried_state import CarriedState
from tests.conftest import STREAMING

FEW = [*STREAMING, "optimization.max_update=18", "dataset.validate_interval_updates=9"]


def load(checkpoint, data):
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(data)})
    return model.eval(), task


def saved(checkpoint):
    return torch.load(checkpoint)


def carried(checkpoint):
    return saved(checkpoint)["extra_state"]["FastWeightLanguageModelingTask"]["carried"]


def assert_same(ours, theirs, **tolerance):
    torch.testing.assert_close(ours, theirs, **{"rtol": 0, "atol": 0, **tolerance})


def test_validation_is_one_pass_over_the_whole_split(streaming_lm):
    model, task = load(streaming_lm.save_dir / "checkpoint_last.pt", streaming_lm.data)
    tokens = torch.from_numpy(load_tokens(str(streaming_lm.data), "valid", task.dictionary).astype(np.int64))
    with torch.no_grad():
        log_prob = model.get_normalized_probs(model(src_tokens=tokens[None, :-1]), log_probs=True)[0]
    loss = -log_prob[torch.arange(len(tokens) - 1), tokens[1:]].mean()
    assert streaming_lm.log["curves"]["valid_loss"][-1] == pytest.approx(float(loss), abs=2e-5)


def test_a_checkpoint_has_a_state_for_every_row(streaming_lm):
    [middle] = streaming_lm.save_dir.glob("checkpoint_*_7.pt")
    kept = carried(middle)
    assert kept["segment"] == 7
    assert [tensor.shape for tensor in kept["state"]] == [(4, 2, 8, 8)] * 2
    assert len({float(row.sum()) for row in kept["state"][0]}) == 4


def test_the_state_that_a_batch_gets_is_the_one_it_left(streaming_lm):
    model, task = load(streaming_lm.checkpoint, streaming_lm.data)
    stream = TokenStream(load_tokens(str(streaming_lm.data), "train", task.dictionary), 16, 1)
    batches = [stream.collater([stream[i] for i in batch]) for batch in stream.batches(2, 6)]
    carried = CarriedState()
    for batch in batches[:12]:  # three batches of rows in turn
        _, extra = model(**batch["net_input"], state=carried.before(batch))
        carried.after(batch, extra["state"])
    for row in range(6):
        text = [b["net_input"]["src_tokens"][row % 2] for b in batches[:12] if b["first_row"] == row - row % 2]
        _, whole = model(torch.cat(text)[None])
        for ours, theirs in zip(carried.batches[row - row % 2][1], whole["state"]):
            assert_same(ours[row % 2], theirs[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="segment 4.*segment 5"):
        carried.before(batches[15])
    assert carried.before(batches[0]) is None  # the next epoch begins


@pytest.mark.parametrize("update", [7, 14])
def test_a_resumed_stream_ends_bit_identical(streaming_lm, train_lm, tmp_path, update):
    [middle] = streaming_lm.save_dir.glob(f"checkpoint_*_{update}.pt")
    options = [*STREAMING, "optimization.max_update=21", "dataset.validate_interval_updates=7"]
    assert train_lm(tmp_path, *options, f"checkpoint.restore_file='{middle}'") == 0
    ours, theirs = (folder / "checkpoint_last.pt" for folder in (tmp_path, streaming_lm.save_dir))
    assert_same(saved(ours)["model"], saved(theirs)["model"])
    assert_same(carried(ours), carried(theirs))


def test_what_is_learned_depends_on_the_state(streaming_lm, train_lm, tmp_path):
    without = [*STREAMING, "task.carry_state=false", "optimization.max_update=7"]
    assert train_lm(tmp_path, *without, "dataset.validate_interval_updates=7") == 0
    [carrying] = streaming_lm.save_dir.glob("checkpoint_*_7.pt")
    ours, theirs = (saved(path)["model"] for path in (tmp_path / "checkpoint_last.pt", carrying))
    assert not torch.equal(ours["decoder.embedding.weight"], theirs["decoder.embedding.weight"])


def test_segments_are_counted_anew_in_every_epoch(streaming_lm):
    """16 updates are an epoch, so that update 21 reads segment 4 of the second one."""
    [later] = streaming_lm.save_dir.glob("checkpoint_2_21.pt")
    assert carried(later)["segment"] == 5


def test_accumulated_batches_carry_the_states_of_the_same_rows(train_lm, tmp_path):
    few = [*FEW, "model.dropout=0", "model.attention_normalization=output"]
    assert train_lm(tmp_path / "whole", *few) == 0
    assert train_lm(tmp_path / "halves", *few, "dataset.batch_size=2", "optimization.update_freq=[2]") == 0
    whole, halves = (tmp_path / name / "checkpoint_last.pt" for name in ("whole", "halves"))
    assert_same(saved(whole)["model"], saved(halves)["model"], rtol=1e-3, atol=1e-4)
    assert_same(carried(whole), carried(halves), rtol=1e-2, atol=1e-3)


def test_a_checkpoint_is_not_resumed_with_other_rows_or_without_its_state(streaming_lm, train_lm, tmp_path, capfd):
    last = f"checkpoint.restore_file='{streaming_lm.save_dir / 'checkpoint_last.pt'}'"
    assert train_lm(tmp_path, last, *STREAMING, "dataset.batch_size=2") != 0
    assert "'rows': 4" in capfd.readouterr().err
    assert train_lm(tmp_path, last, *STREAMING, "task.carry_state=false") != 0
    assert "'carry_state': True" in capfd.readouterr().err
    assert list(tmp_path.glob("*")) == []


def test_bfloat16_keeps_the_state_in_float32(train_lm, tmp_path):
    assert train_lm(tmp_path, *FEW, "common.bf16=true") == 0
    assert {tensor.dtype for tensor in carried(tmp_path / "checkpoint_last.pt")["state"]} == {torch.float32}


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["row=transformer"], ["task.carry_state", "softmax", "fwp_transformer_xl"]),
        (["task.order=blocks"], ["task.carry_state", "task.order=stream"]),
        (["task.tokens_per_sample_eval=0"], ["tokens_per_sample_eval", "0"]),
    ],
    ids=["softmax", "blocks", "segment"],
)
def test_what_cannot_carry_a_state_is_refused(train_lm, tmp_path, capfd, overrides, words):
    assert train_lm(tmp_path / "out", *STREAMING, *overrides) != 0
    text = capfd.readouterr().err
    assert all(word in text for word in words), text
    assert list((tmp_path / "out").glob("*")) == []


def test_a_row_that_ends_first_gives_an_empty_batch():
    """67 tokens in 4 rows of 17, 17, 16 and 16: the last batch of two rows has nothing left."""
    stream = TokenStream(np.arange(10, 77), 16, 1)
    batches = [stream.collater([stream[i] for i in batch]) for batch in stream.batches(2, 4)]
    assert [batch["ntokens"] for batch in batches] == [32, 32, 2, 0]
    assert batches[-1]["net_input"]["src_tokens"].tolist() == [[1], [1]]
    assert math.prod(batches[-1]["target"].shape) == 2

"""Training language models: order of the data, the count of tokens, resuming, divergence, and bad input."""

import json
import math

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from fwp_fairseq.cli.eval_lm import main as evaluate
from fwp_fairseq.data.token_stream import load_tokens
from fwp_fairseq.tasks.divergence import DivergenceRule


def load(checkpoint, data):
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(data)})
    return model.eval(), task


def parameters(checkpoint):
    return torch.load(checkpoint)["model"]


def assert_same(ours, theirs, **tolerance):
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], **{"rtol": 0, "atol": 0, **tolerance}, msg=name)


def log_of(save_dir):
    return json.loads((save_dir / "training.json").read_text())


def test_training_lowers_the_loss_and_logs_its_curves(trained_lm):
    log = trained_lm.log
    assert (log["status"], log["updates"], log["row"], log["setting"]) == ("finished", 60, "delta", "mini")
    assert log["curves"]["updates"] == [20, 40, 60]
    assert log["curves"]["train_loss"][-1] < log["curves"]["train_loss"][0] - 0.3
    assert log["curves"]["valid_loss"][-1] < math.log(31) - 0.3  # better than the uniform distribution
    # 1,000 tokens are 999 predictions an epoch, 16 updates of 64 and what is left
    assert log["tokens"] == 3 * 999 + 12 * 64


def test_validation_loss_is_the_mean_over_every_token_but_the_first(trained_lm):
    model, task = load(trained_lm.save_dir / "checkpoint_last.pt", trained_lm.data)
    tokens = torch.from_numpy(load_tokens(str(trained_lm.data), "valid", task.dictionary).astype(np.int64))
    losses, predictions = [], len(tokens) - 1
    bounds = [round_up(predictions * row, 4) for row in range(5)]
    for start, end in zip(bounds, bounds[1:]):  # four rows, in segments of 16
        for first in range(start, end, 16):
            segment = tokens[first : min(first + 16, end) + 1]
            log_prob = model.get_normalized_probs(model(src_tokens=segment[None, :-1]), log_probs=True)[0]
            losses += (-log_prob[range(len(segment) - 1), segment[1:]]).tolist()
    assert len(losses) == predictions
    assert trained_lm.log["curves"]["valid_loss"][-1] == pytest.approx(sum(losses) / predictions, abs=1e-4)


def round_up(product, divisor):
    return -(-product // divisor)


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(trained_lm, train_lm, tmp_path):
    [middle] = trained_lm.save_dir.glob("checkpoint_*_20.pt")  # in the second epoch
    assert train_lm(tmp_path, f"checkpoint.restore_file='{middle}'") == 0
    assert_same(parameters(tmp_path / "checkpoint_last.pt"), parameters(trained_lm.save_dir / "checkpoint_last.pt"))
    assert log_of(tmp_path)["curves"] == trained_lm.log["curves"]
    assert log_of(tmp_path)["tokens"] == trained_lm.log["tokens"]


def test_a_run_is_not_resumed_at_a_wrong_place(trained_lm, train_lm, tmp_path, capfd):
    last = trained_lm.save_dir / "checkpoint_last.pt"
    more = ["optimization.max_update=70", "dataset.batch_size=2", "optimization.update_freq=[2]"]
    assert train_lm(tmp_path, f"checkpoint.restore_file='{last}'", *more) != 0
    error = capfd.readouterr().err
    assert "'update_freq': 1" in error and "'update_freq': 2" in error and "checkpoint.save_dir" in error
    assert list(tmp_path.glob("*")) == []


def test_accumulated_batches_are_the_same_rows_as_one_large_batch(train_lm, tmp_path):
    few = ["optimization.max_update=18", "model.dropout=0"]  # into the second epoch
    assert train_lm(tmp_path / "whole", *few) == 0
    assert train_lm(tmp_path / "halves", *few, "dataset.batch_size=2", "optimization.update_freq=[2]") == 0
    whole, halves = (parameters(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "halves"))
    assert_same(whole, halves, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("order", ["stream", "blocks"])
def test_blocks_are_shuffled_every_epoch_and_streams_never(trained_lm, order):
    _, task = load(trained_lm.checkpoint, trained_lm.data)
    task.args.order = order
    task.load_dataset("train")
    batches = task.get_batch_iterator(task.datasets["train"], max_sentences=4, required_batch_size_multiple=1)
    epochs = [[b["target"].flatten() for b in batches.next_epoch_itr(shuffle=True)] for _ in range(2)]
    first, second = (torch.cat(epoch) for epoch in epochs)
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert torch.equal(first, second) == (order == "stream")
    assert (first != 1).sum() == {"stream": 999, "blocks": 1000}[order]  # fairseq lets </s> predict the first token


def test_bfloat16_trains_on_cpus(train_lm, tmp_path):
    assert train_lm(tmp_path, "common.bf16=true", "optimization.max_update=40") == 0
    losses = log_of(tmp_path)["curves"]["train_loss"]
    assert losses[1] < losses[0] - 0.1


def test_argparse_users_train_and_evaluate_the_same_models(lm_data, tmp_path, monkeypatch):
    from fairseq_cli import train as fairseq_train

    arguments = (
        f"fairseq-train {lm_data} --task fwp_language_modeling --tokens-per-sample 16 --arch fwp_lm_mini_performer "
        "--d-model 16 --heads 2 --layers 1 --d-ffn 16 --criterion language_model_loss --optimizer torch_adam --lr 0.01 "
        f"--batch-size 4 --max-update 3 --save-dir {tmp_path} --ddp-backend legacy_ddp --no-progress-bar --cpu"
    )
    monkeypatch.setattr("sys.argv", arguments.split())
    fairseq_train.cli_main()
    assert log_of(tmp_path)["status"] == "finished"
    assert evaluate([str(tmp_path / "checkpoint_best.pt"), str(lm_data), "--stride", "8"]) == 0


@pytest.mark.parametrize(
    "lr, reason", [("1.0e+30", "not finite"), ("30", "above that of the first update")], ids=["nan", "rising"]
)
def test_divergence_ends_the_training_and_is_logged(train_lm, tmp_path, lr, reason):
    assert train_lm(tmp_path, f"optimization.lr=[{lr}]", "task.divergence_span=5") == 0
    log = log_of(tmp_path)
    assert log["status"] == "diverged" and reason in log["reason"]
    assert log["updates"] < 20
    assert (tmp_path / "checkpoint_last.pt").exists() and not (tmp_path / "crash.pt").exists()


def test_divergence_rule():
    rule = DivergenceRule(span=3)
    assert [rule.observe(loss) for loss in (5.0, 6.0, 6.0, 5.0, 5.1, 5.1)] == [None] * 6
    assert "5.00" in rule.observe(5.1)
    resumed = DivergenceRule(**rule.state_dict())
    assert resumed.observe(4.0) is None and "nan" in resumed.observe(math.nan)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["task.data=/nowhere"], ["task.data=/nowhere", "data_prep"]),
        (["row=no_such_row"], ["no_such_row", "delta"]),
        (["task.tokens_per_sample=1000"], ["tokens_per_sample", "1000"]),
        (["dataset.batch_size=500"], ["batch_size", "500"]),
        (["model.heads=3"], ["d_model=16", "heads=3"]),
        (["model.cutoffs='10,90'"], ["cutoffs", "10,90"]),
        (["optimization.update_freq=[1,2]"], ["update_freq"]),
    ],
    ids=lambda value: value[0].split(".")[-1] if isinstance(value, list) else "",
)
def test_bad_settings_fail_with_their_name_and_write_nothing(train_lm, tmp_path, capfd, overrides, words):
    assert train_lm(tmp_path / "out", *overrides) != 0
    text = capfd.readouterr().err
    assert all(word in text for word in words), text
    assert list((tmp_path / "out").glob("*")) == []

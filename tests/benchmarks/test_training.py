"""fwp-bench training and fwp-report bench_training: what is timed, recorded and drawn, and what is refused."""

import os
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import nn

from fwp_fairseq.benchmarks import training, training_speed
from fwp_fairseq.benchmarks.step_profile import (
    EMBEDDING,
    FEED_FORWARD,
    OTHER,
    PARTS,
    PROJECTIONS,
    RULE,
    profile,
)
from fwp_fairseq.benchmarks.training_step import TrainingStep, adam, share_weights
from fwp_fairseq.cli.bench import main
from fwp_fairseq.cli.report import main as report
from fwp_fairseq.criterions.language_model_loss import LanguageModelLoss
from fwp_fairseq.models.language_model import FastWeightLanguageModel, LanguageModelConfig
from fwp_fairseq.models.language_model_architectures import ROWS
from fwp_fairseq.records import new_record, read_record, write_record
from fwp_fairseq.reports import bench_training, bench_training_plot

CPU = torch.device("cpu")
SIZES = {"d_model": 8, "heads": 2, "d_ffn": 16, "layers": 1, "dropout": 0.0, "cutoffs": "10,30"}
WORDS = 52
CRITERION = LanguageModelLoss(SimpleNamespace(target_dictionary=Dictionary()))
TEXT = training_speed.random_text(WORDS, 3, 7, CPU)


def tiny(row="delta"):
    torch.manual_seed(2)
    return FastWeightLanguageModel(LanguageModelConfig(**SIZES, **ROWS[row]), range(WORDS))


def step_of(model, optimizer=None, sample=TEXT, clip_norm=0.25):
    optimizer = optimizer or adam(share_weights([model]), **training_speed.ADAM)
    return TrainingStep(model, CRITERION, optimizer, clip_norm, sample)


def test_a_run_is_recorded_printed_and_drawn(tmp_path, capsys):
    threads = torch.get_num_threads()
    options = "--setting mini --rows transformer,delta --lengths 8,3,8 --tokens 16 --rounds 2 --threads 1".split()
    try:
        assert main(["training", *options, "--results", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(threads)
    output = capsys.readouterr().out
    record = read_record(tmp_path / "runs/bench_training/cpu/mini/seed1.json")
    curves = record["curves"]
    assert (curves["length"], curves["words"]) == ([3, 8], [15, 16])
    for row in ("transformer", "delta"):
        for place, length in enumerate((3, 8)):
            speed = curves["words"][place] / (sum(curves[f"{row}/{length}/ms"]) / 2000)
            assert curves[f"{row}/words_per_second"][place] == pytest.approx(speed, rel=0.01)
        assert min(curves[f"{row}/peak_mb"]) * 2**20 > 4 * 4 * 200_000  # weights, gradients and two moments
    assert [name for name in record["metrics"]] == [f"profile/{part}/ms" for part in PARTS]
    assert record["config"]["threads"] == 1 and record["scale"] == "bench"
    assert report(["bench_training", "--results", str(tmp_path)]) == 0
    assert output.split("record: ")[0].strip() in (tmp_path / "tables/bench_training.md").read_text()
    assert (tmp_path / "figures/bench_training.png").read_bytes().startswith(b"\x89PNG")


def test_the_rows_are_those_of_the_models():
    assert set(training.ROWS) == set(ROWS) == set(bench_training.ROWS) == set(bench_training_plot.STYLES)
    assert set(training.SETTINGS) == set(training_speed.SIZES) == set(training_speed.DICTIONARY)


def test_a_step_is_that_of_plain_torch():
    ours, theirs = tiny(), tiny()
    step = step_of(ours, clip_norm=0.01)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=2.5e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    for weight in theirs.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for _ in range(2):
        step()
        hidden, _ = theirs(TEXT["net_input"]["src_tokens"])
        log_probabilities = theirs.decoder.adaptive_softmax.get_log_prob(hidden)
        optimizer.zero_grad()
        F.nll_loss(log_probabilities.flatten(0, 1), TEXT["target"].flatten()).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
        optimizer.step()
    for (name, weight), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-4, atol=1e-6, msg=name)
        assert weight.grad is None and not torch.equal(weight, tiny().get_parameter(name)), name


def test_models_that_share_weights_compute_what_they_would_with_their_own():
    models = {row: tiny(row) for row in ("transformer", "linear", "delta", "dpfp_delta")}
    weights = share_weights(models.values())
    assert {id(weight) for weight in weights} == {id(weight) for weight in models["dpfp_delta"].parameters()}
    step_of(models["linear"], adam(weights, **training_speed.ADAM))()
    for row, model in models.items():
        own = tiny(row)
        own.load_state_dict(models["delta"].state_dict(), strict=row in ("delta", "dpfp_delta"))
        assert own.parameter_count == model.parameter_count
        assert torch.equal(CRITERION(model.eval(), dict(TEXT))[0], CRITERION(own.eval(), dict(TEXT))[0])


def test_memory_is_that_of_a_row_by_itself_and_grows_with_the_words():
    alone = tiny("delta")
    models = [tiny("transformer"), tiny("delta")]
    optimizer = adam(share_weights(models), **training_speed.ADAM)
    peak = step_of(models[1], optimizer).peak_bytes(CPU)
    assert peak == step_of(alone).peak_bytes(CPU)
    assert peak > 4 * 4 * alone.parameter_count
    longer = training_speed.random_text(WORDS, 3, 50, CPU)
    more = step_of(models[1], optimizer, longer).peak_bytes(CPU) - peak
    assert more > 4 * 3 * 43 * (16 + 16 + 3 * 8)  # what the feed-forward block and the projections keep of a word


class Sleeping(torch.autograd.Function):
    """Passes on what it gets, after a while, in both directions."""

    SECONDS = 0.2

    @staticmethod
    def forward(ctx, x):
        time.sleep(Sleeping.SECONDS)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(Sleeping.SECONDS)
        return gradient


class Slow(nn.Sequential):
    """A module that sleeps as long in its forward as in its backward pass."""

    def forward(self, *inputs):
        return Sleeping.apply(super().forward(*inputs))


def slow_down(part, step):
    decoder = step.model.decoder
    layer = decoder.layers[0]
    if part == EMBEDDING:
        embedding = decoder.embedding
        embedding.forward = lambda tokens: Sleeping.apply(F.embedding(tokens, embedding.weight))
    elif part == FEED_FORWARD:
        layer.ffn = Slow(layer.ffn)
    elif part == PROJECTIONS:
        layer.attention.output_projection = Slow(layer.attention.output_projection)
    elif part == RULE:
        layer.attention.feature_map = Slow(layer.attention.feature_map)
    elif part == OTHER:
        layer.ffn_norm = Slow(layer.ffn_norm)
    else:
        update = step.optimizer.step
        step.optimizer.step = lambda: (time.sleep(2 * Sleeping.SECONDS), update())


@pytest.mark.parametrize("part", PARTS)
def test_time_is_counted_where_it_is_spent_forward_and_backward(part):
    step = step_of(tiny())
    slow_down(part, step)
    seconds = profile(step, CPU, 1)
    assert seconds[part] >= 2 * Sleeping.SECONDS
    assert all(taken < Sleeping.SECONDS for other, taken in seconds.items() if other != part)


def test_the_softmax_counts_with_the_embedding_and_hooks_are_taken_away(monkeypatch):
    step = step_of(tiny())
    output = step.model.decoder.adaptive_softmax
    logits = output.head_logits
    monkeypatch.setattr(output, "head_logits", lambda hidden, weights: Sleeping.apply(logits(hidden, weights)))
    assert profile(step, CPU, 1)[EMBEDDING] >= 2 * Sleeping.SECONDS
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    assert not any(getattr(module, kind) for module in step.model.modules() for kind in hooks)


def test_words_are_as_rare_as_in_text():
    text = training_speed.random_text(267_737, 64, 1024, CPU)
    source, target = text["net_input"]["src_tokens"], text["target"]
    assert torch.equal(source[:, 1:], target[:, :-1]) and text["ntokens"] == target.numel() == 65_536
    assert 2 <= int(target.min()) and int(target.max()) < 267_737
    for first, share in ((0, 1.0), (1, 0.94), (20_000, 0.079), (40_000, 0.053), (200_000, 0.0070)):
        assert float((target - 2 >= first).double().mean()) == pytest.approx(share, rel=0.1)


def make_record(folder, row="cpu", setting="medium", rows=("transformer", "linear", "delta"), **changed):
    """A record whose ratios a test can follow."""
    curves = {"length": [384, 1024], "words": [4224, 4096]}
    for number, name in enumerate(rows):
        curves[f"{name}/words_per_second"] = [100.0 + 50 * number, 100.0 * (1 + number)]
        curves[f"{name}/peak_mb"] = [2000.0 - 400 * number, 4000.0 - 1000 * number]
    config = {
        "setting": setting, "rows": list(rows), "rounds": 3, "threads": 2, "dictionary": 267_737, "layers": 16,
        "d_model": 256,
    }  # fmt: skip
    record = new_record(
        "bench_training", row, 1, "bench", {f"profile/{RULE}/ms": 30.0, f"profile/{OTHER}/ms": 90.0}, updates=3,
        wall_seconds=1.0, parameters=0, config=config, cell=setting, curves={**curves, **changed},
        device=f"the {row} of the test",
    )  # fmt: skip
    return write_record(folder, record)


def table_rows(path):
    lines = [line for line in path.read_text().splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_ratios_stand_beside_those_of_the_paper_at_its_setting_and_length(tmp_path, capsys):
    make_record(tmp_path)
    make_record(tmp_path, setting="mini")
    (tmp_path / "paper.yaml").write_text(
        "throughput:\n"
        "  - {row: transformer, words_per_second: 1000, memory_gb: 20}\n"
        "  - {row: delta, words_per_second: 1500, memory_gb: 15}\n"
    )
    assert report(["bench_training", "--results", str(tmp_path)]) == 0
    rows = table_rows(tmp_path / "tables/bench_training.md")
    delta = [row for row in rows if row[0] == "delta"]
    assert delta[0] == ["delta", "384", "4224", "200", "2.00", "1.50", "1200", "0.60", "0.75"]
    assert delta[1] == ["delta", "1024", "4096", "300", "3.00", "", "2000", "0.50", ""]
    assert delta[2] == [*delta[0][:5], "", *delta[0][6:8], ""]  # the mini setting
    assert [row for row in rows if row[0] == "linear (sum rule)"][0][5] == ""
    assert [RULE, "30.0", "25.0"] in rows and ["whole step", "120", "100.0"] in rows
    capsys.readouterr()
    assert report(["bench_training", "--results", str(tmp_path), "--brief"]) == 0
    assert "L = 384 delta 2.00 (1.50) 0.60 (0.75)" in " ".join(capsys.readouterr().out.split())


def test_records_that_do_not_fit_are_named_and_the_rest_reported(tmp_path, capsys):
    misfits = {
        "empty": ({"length": []}, "length is missing or empty"),
        "short": ({"delta/peak_mb": [1.0]}, "delta/peak_mb must be 2 numbers"),
        "zero": ({"delta/words_per_second": [1.0, 0.0]}, "delta/words_per_second must be 2 numbers"),
        "alone": ({"rows": ("delta",)}, "rows has no transformer"),
    }
    paths = {row: make_record(tmp_path, row=row, **changed) for row, (changed, _) in misfits.items()}
    assert report(["bench_training", "--results", str(tmp_path)]) == 1
    assert "fwp-bench training --results" in capsys.readouterr().err
    make_record(tmp_path)
    assert report(["bench_training", "--results", str(tmp_path)]) == 1
    problems = capsys.readouterr().err.splitlines()
    for row, (_, reason) in misfits.items():
        assert any(f"{paths[row]}: " in problem and reason in problem for problem in problems)
    assert (tmp_path / "figures/bench_training.png").is_file()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--rows", "delta"], ["--rows", "transformer", "got delta"]),
        (["--tokens", "100", "--lengths", "64,384"], ["--tokens", "384", "got 100"]),
        (["--device", "cuda"], ["--device", "cpu"]),
        (["--json", os.sep], ["--json", "cannot be written"]),
    ],
)
def test_what_cannot_be_measured_is_one_clear_error(capsys, monkeypatch, arguments, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["training", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fwp-bench training: error: ") and all(word in error for word in words)


def test_a_step_that_does_not_fit_into_a_gpu_is_one_clear_error(capsys, monkeypatch):
    def too_much(step, device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TrainingStep, "peak_bytes", too_much)
    assert main("training --setting mini --rows transformer --lengths 8 --tokens 16".split()) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in ("error: --tokens", "transformer at L = 8", "give fewer"))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--rows", "transformer,nope"], ["--rows", "'nope'", "dpfp_delta"]),
        (["--lengths", "384,0"], ["--lengths", "'0'"]),
        (["--lengths", ""], ["--lengths", "''"]),
        (["--setting", "large"], ["--setting", "'large'", "medium"]),
    ],
)
def test_wrong_arguments_are_named(capsys, arguments, words):
    with pytest.raises(SystemExit) as stopped:
        main(["training", *arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)

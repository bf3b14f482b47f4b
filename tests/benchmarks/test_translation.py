"""fwp-bench translation and fwp-report bench_translation: what is timed, recorded and drawn, and what is refused."""

import os

import pytest
import torch

from fwp_fairseq.benchmarks import translation, translation_speed
from fwp_fairseq.benchmarks.training_step import share_weights
from fwp_fairseq.cli.bench import main
from fwp_fairseq.cli.report import main as report
from fwp_fairseq.models.translation_architectures import ROWS
from fwp_fairseq.records import new_record, read_record, write_record
from fwp_fairseq.reports import bench_translation, bench_translation_plot

CPU = torch.device("cpu")
TINY = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "d_ffn": 24}


@pytest.fixture
def tiny(monkeypatch):
    """Makes the mini setting a tiny one; returns its dictionary."""
    monkeypatch.setitem(translation_speed.SETTINGS, "mini", TINY)
    monkeypatch.setitem(translation_speed.SUBWORDS, "mini", 40)
    return translation_speed.subwords(40)


def test_a_run_is_recorded_printed_and_drawn(tiny, tmp_path, capsys):
    threads = torch.get_num_threads()
    options = "--setting mini --rows linear,elu_delta --lengths 9,3 --tokens 100 --sentences 3 --rounds 2 --threads 1"
    try:
        assert main(["translation", *options.split(), "--results", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(threads)
    output = capsys.readouterr().out
    record = read_record(tmp_path / "runs/bench_translation/cpu/mini/seed1.json")
    curves, config = record["curves"], record["config"]
    assert curves["length"] == [3, 9] and config["rows"] == ["fairseq", "linear", "elu_delta"]
    for row in config["rows"]:
        training = 96 / (sum(curves[f"{row}/training/ms"]) / 2000)
        assert record["metrics"][f"{row}/training_tokens_per_second"] == pytest.approx(training, rel=0.01)
        for place, length in enumerate((3, 9)):
            per_token = sum(curves[f"{row}/{length}/ms"]) / 2 / (length + 1)
            assert curves[f"{row}/ms_per_token"][place] == pytest.approx(per_token, rel=0.01)
            assert curves[f"{row}/tokens_per_second"][place] == pytest.approx(3000 / per_token, rel=0.01)
    assert (config["threads"], config["tokens"], config["sentences"], record["scale"]) == (1, 96, 3, "bench")
    assert report(["bench_translation", "--results", str(tmp_path)]) == 0
    assert output.split("record: ")[0].strip() in (tmp_path / "tables/bench_translation.md").read_text()
    assert (tmp_path / "figures/bench_translation.png").read_bytes().startswith(b"\x89PNG")


def test_the_rows_are_those_of_the_models():
    assert set(translation.ROWS) == set(ROWS) == set(bench_translation.ROWS) - {"fairseq"}
    assert set(bench_translation.ROWS) == set(bench_translation_plot.STYLES)


@pytest.mark.parametrize("row", ["fairseq", "linear", "performer_64", "elu_delta"])
def test_every_hypothesis_is_as_long_as_asked_for(tiny, row):
    model = translation_speed.build(row, "mini", tiny, positions=21)
    sample = translation_speed.random_sentences(tiny, 2, CPU)
    for length in (1, 6, 20):
        beams = translation_speed.Translating(model, tiny, length, sample)()
        hypotheses = [hypothesis["tokens"] for beam in beams for hypothesis in beam]
        assert len(hypotheses) == 2 * 4
        assert all(len(tokens) == length + 1 and int((tokens == tiny.eos()).sum()) == 1 for tokens in hypotheses)


def test_fairseqs_model_is_its_own_and_shares_its_weights_with_ours(tiny):
    rows = ("fairseq", "transformer", "linear", "elu_delta")
    models = {row: translation_speed.build(row, "mini", tiny, 1024).eval() for row in rows}
    weights = share_weights(models.values())
    assert type(models["fairseq"]).__module__.startswith("fairseq.")
    assert {id(weight) for weight in weights} == {id(weight) for weight in models["elu_delta"].parameters()}
    inputs = translation_speed.random_sentences(tiny, 3, CPU)["net_input"]
    fairseq, ours, linear = (models[row](**inputs)[0] for row in ("fairseq", "transformer", "linear"))
    assert torch.equal(fairseq, ours) and not torch.allclose(fairseq, linear)


def test_targets_are_shifted_and_end():
    dictionary = translation_speed.subwords(40)
    batch = translation_speed.random_sentences(dictionary, 4, CPU)
    before, target = batch["net_input"]["prev_output_tokens"], batch["target"]
    assert torch.equal(before[:, 1:], target[:, :-1])
    assert bool((before[:, 0] == dictionary.eos()).all()) and bool((target[:, -1] == dictionary.eos()).all())
    assert int((target == dictionary.eos()).sum()) == 4 and int((target == dictionary.pad()).sum()) == 0
    assert batch["ntokens"] == 4 * translation.SENTENCE


def make_record(folder, row="cpu", rows=("fairseq", "linear"), speeds=None, **changed):
    """A record whose ratios a test can follow: a token of fairseq's grows with the length."""
    curves, metrics = {"length": [16, 256]}, {}
    for name in rows:
        softmax = name == "fairseq"
        curves[f"{name}/ms_per_token"] = [10.0, 40.0] if softmax else [20.0, 20.0]
        curves[f"{name}/tokens_per_second"] = [200.0, 50.0] if softmax else [100.0, 100.0]
        metrics[f"{name}/training_tokens_per_second"] = 500.0 if softmax else 750.0
    config = {
        **TINY, "setting": "base", "rows": list(rows), "rounds": 3, "threads": 2, "subwords": 32_000, "tokens": 512,
        "sentence": 32, "sentences": 2, "beam": 4,
    }  # fmt: skip
    record = new_record(
        "bench_translation", row, 1, "bench", {**metrics, **(speeds or {})}, updates=3, wall_seconds=1.0,
        parameters=0, config=config, cell="base", curves={**curves, **changed}, device=f"the {row} of the test",
    )  # fmt: skip
    return write_record(folder, record)


def test_every_row_stands_beside_fairseqs_and_its_growth(tmp_path, capsys):
    make_record(tmp_path)
    assert report(["bench_translation", "--results", str(tmp_path)]) == 0
    lines = (tmp_path / "tables/bench_translation.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert ["linear (64)", "750", "1.50", "100", "0.50", "100", "2.00"] in rows
    assert ["fairseq's transformer", "10.0", "40.0", "× 4.00"] in rows
    assert ["linear (64)", "20.0", "20.0", "× 1.00"] in rows
    capsys.readouterr()
    assert report(["bench_translation", "--results", str(tmp_path), "--brief"]) == 0
    assert "linear (64) 1.50 0.50 × 1.00" in " ".join(capsys.readouterr().out.split())


def test_records_that_do_not_fit_are_named_and_the_rest_reported(tmp_path, capsys):
    misfits = {
        "empty": ({"length": []}, "length is missing or empty"),
        "short": ({"linear/ms_per_token": [1.0]}, "linear/ms_per_token must be 2 numbers"),
        "alone": ({"rows": ("linear",)}, "rows has no fairseq"),
        "still": ({"speeds": {"linear/training_tokens_per_second": None}}, "must be a number above 0, got None"),
    }
    paths = {row: make_record(tmp_path, row=row, **changed) for row, (changed, _) in misfits.items()}
    assert report(["bench_translation", "--results", str(tmp_path)]) == 1
    assert "fwp-bench translation --results" in capsys.readouterr().err
    make_record(tmp_path)
    assert report(["bench_translation", "--results", str(tmp_path)]) == 1
    problems = capsys.readouterr().err.splitlines()
    for row, (_, reason) in misfits.items():
        assert any(f"{paths[row]}: " in problem and reason in problem for problem in problems)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--tokens", "31"], ["--tokens", "32", "got 31"]),
        (["--device", "cuda"], ["--device", "cpu"]),
        (["--json", os.sep], ["--json", "cannot be written"]),
    ],
)
def test_what_cannot_be_measured_is_one_clear_error(capsys, monkeypatch, arguments, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["translation", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fwp-bench translation: error: ") and all(word in error for word in words)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--rows", "linear,nope"], ["--rows", "'nope'", "dpfp_256_delta"]),
        (["--lengths", "0"], ["--lengths", "'0'"]),
        (["--sentences", "-1"], ["--sentences", "'-1'"]),
        (["--setting", "big"], ["--setting", "'big'", "mini"]),
    ],
)
def test_wrong_arguments_are_named(capsys, arguments, words):
    with pytest.raises(SystemExit) as stopped:
        main(["translation", *arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)

"""fwp-bench decode and fwp-report bench_decode: what is measured, recorded and drawn, and what is refused."""

import os

import pytest
import torch

from fwp_fairseq.benchmarks.decoding import MODELS, Decoding, spans, state_size
from fwp_fairseq.cli.bench import main
from fwp_fairseq.cli.report import main as report
from fwp_fairseq.records import new_record, read_record, write_record

POSITIONS = [24, 400, 20_000]


def make_record(folder, row="cpu", **changed):
    """A record with times that a test can follow: softmax's grow with the position."""
    curves = {"position": POSITIONS}
    for model in MODELS:
        curves[f"{model}/ms"] = [2.0, 8.0, 64.0] if model == "softmax" else [4.0, 3.9, 4.2]
        curves[f"{model}/state"] = [1000 * end for end in POSITIONS] if model == "softmax" else [32768] * 3
    config = {"d_model": 256, "heads": 8, "d_ffn": 2048, "layers": 4, "words": 2000, "mem_len": 384, "tokens": 24, "threads": 2}
    record = new_record(
        "bench_decode", row, 1, "bench", metrics={}, updates=24, wall_seconds=1.0, parameters=0,
        config=config, curves={**curves, **changed}, device=f"the {row} of the test",
    )  # fmt: skip
    return write_record(folder, record)


def test_a_run_is_recorded_printed_and_drawn(tmp_path, capsys):
    threads = torch.get_num_threads()
    try:
        options = ["--results", str(tmp_path), "--length", "140", "--tokens", "4", "--layers", "1", "--threads", "1"]
        assert main(["decode", *options]) == 0
    finally:
        torch.set_num_threads(threads)
    assert "Milliseconds a token" in capsys.readouterr().out
    record = read_record(tmp_path / "runs/bench_decode/cpu/seed1.json")
    curves = record["curves"]
    assert curves["position"] == [4, 64, 128, 140]
    assert all(len(curves[f"{model}/ms"]) == 4 and min(curves[f"{model}/ms"]) > 0 for model in MODELS)
    assert curves["delta/state"] == [8 * 32 * 32] * 4
    assert curves["linear/state"] == [8 * 32 * 33] * 4
    assert curves["dpfp_delta/state"] == [8 * 64 * 32] * 4
    assert curves["transformer_xl/state"] == [256 * end for end in curves["position"]]
    assert curves["softmax/state"] == [2 * 256 * end for end in curves["position"]]
    assert record["config"]["threads"] == 1 and record["scale"] == "bench"
    assert report(["bench_decode", "--results", str(tmp_path)]) == 0
    assert "| 137 to 140 " in (tmp_path / "tables/bench_decode.md").read_text()
    assert (tmp_path / "figures/bench_decode.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("model", MODELS)
def test_a_text_goes_on_from_where_it_was_left(model):
    decoding = Decoding(model, 1, torch.device("cpu"))
    decoding.read_until(600)  # more than a segment
    left, tokens = decoding.place(), []
    for _ in range(2):
        decoding.go_to(left)
        for _ in range(3):
            decoding.generate()
        tokens.append(decoding.token)
        assert decoding.position == 603
        expected = {"softmax": 2 * 256 * 603, "transformer_xl": 256 * 384}
        assert state_size(decoding.state) == expected.get(model, state_size(left.state))
    assert torch.equal(*tokens)


def test_spans_do_not_overlap_and_end_at_the_last_token():
    for length, tokens in ((20_000, 24), (24, 24), (25, 24), (64, 24), (130, 24), (5000, 200), (4096, 12), (9, 1)):
        ends = spans(length, tokens)
        assert ends[0] == tokens and ends[-1] <= length and ends[-1] > length - tokens
        assert all(later - end >= tokens for end, later in zip(ends, ends[1:]))
    assert spans(20_000, 24) == [24, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 20_000]


def test_the_table_has_every_model_side_by_side_and_their_growth(tmp_path, capsys):
    make_record(tmp_path)
    assert report(["bench_decode", "--results", str(tmp_path)]) == 0
    lines = [line for line in (tmp_path / "tables/bench_decode.md").read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    times, states = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert times[2] == ["1 to 24", "4.00", "4.00", "4.00", "4.00", "2.00"]
    assert times[-1] == ["last / first", "× 1.05", "× 1.05", "× 1.05", "× 1.05", "× 32.00"]
    assert states[-2][-2:] == ["32,768", "20,000,000"]
    capsys.readouterr()
    assert report(["bench_decode", "--results", str(tmp_path), "--brief"]) == 0
    assert "softmax, cached          2.00     64.0   × 32.00" in capsys.readouterr().out


def test_records_that_do_not_fit_are_named_and_the_rest_reported(tmp_path, capsys):
    misfits = {
        "empty": ({"position": []}, "position is missing or empty"),
        "short": ({"delta/ms": [1.0, 2.0]}, "delta/ms must be 3 numbers"),
        "holes": ({"delta/ms": [1.0, None, 2.0]}, "delta/ms must be 3 numbers"),
        "zero": ({"softmax/state": [1, 2, 0]}, "softmax/state must be 3 numbers"),
    }
    paths = {row: make_record(tmp_path, row=row, **changed) for row, (changed, _) in misfits.items()}
    assert report(["bench_decode", "--results", str(tmp_path)]) == 1
    assert "fwp-bench decode --results" in capsys.readouterr().err
    make_record(tmp_path)
    assert report(["bench_decode", "--results", str(tmp_path)]) == 1
    problems = capsys.readouterr().err.splitlines()
    for row, (_, reason) in misfits.items():
        assert any(f"{paths[row]}: " in problem and reason in problem for problem in problems)
    assert (tmp_path / "figures/bench_decode.png").is_file()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--length", "10"], ["--length", "24 tokens", "got 10"]),
        (["--device", "cuda"], ["--device", "cpu"]),
        (["--json", os.sep], ["--json", "cannot be written"]),
    ],
)
def test_what_cannot_be_measured_is_one_clear_error(capsys, monkeypatch, arguments, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["decode", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fwp-bench decode: error: ") and all(word in error for word in words)

"""fwp-bench and fwp-report bench: what is measured, recorded and drawn, and what is refused."""

import subprocess
import sys
import types

import pytest
import torch

from fwp_fairseq.benchmarks import contenders, side_by_side
from fwp_fairseq.cli.bench import main
from fwp_fairseq.cli.report import main as report
from fwp_fairseq.records import new_record, read_record, write_record

SWEEP = "1,2,8,4,3;1,2,16,4,3;1,2,32,4,3"
OURS = ["delta, torch", "delta, step by step", "sum, torch", "sum, step by step"]


@pytest.fixture
def fla(monkeypatch):
    """Puts a function in the place of fla-core's chunked delta rule."""

    def install(function):
        module = types.ModuleType("fla.ops.delta_rule.naive")
        module.delta_rule_chunkwise = function
        for name in ("fla", "fla.ops", "fla.ops.delta_rule"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


@pytest.fixture
def no_other_libraries(monkeypatch):
    for name in ("fla", "fast_transformers"):
        monkeypatch.setitem(sys.modules, name, None)


def table_rows(markdown):
    """[[cell, ...]] of all Markdown tables, without their rules."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_all_contenders_stand_side_by_side_and_the_report_repeats_the_table(tmp_path, capsys, no_other_libraries):
    arguments = ["ops", "--shapes", f"2,1,9,4,3;{SWEEP}", "--repeats", "2", "--results", str(tmp_path)]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    rows = table_rows(output)
    assert [row[1] for row in rows if row[0] == "2, 1, 9, 4, 3"] == ["softmax attention (SDPA)", *OURS]
    milliseconds = rows.index(["L", "softmax attention (SDPA)", *OURS])
    assert [row[0] for row in rows[milliseconds + 1 : milliseconds + 5]] == ["8", "16", "32", "last doubling"]
    assert all(float(cell) > 0 for row in rows[milliseconds + 1 : milliseconds + 4] for cell in row[1:])
    assert "sum/triton: " in output and "delta/fla: the package fla-core is not installed" in output

    record = read_record(tmp_path / "runs" / "bench_ops" / "cpu" / "float32" / "seed1.json")
    key = "delta/torch/1x2x32x4x3/ms"
    assert len(record["curves"][key]) == 2 and record["metrics"][key] > 0
    assert record["config"]["threads"] == torch.get_num_threads()
    assert report(["bench", "--results", str(tmp_path)]) == 0
    table = (tmp_path / "tables" / "bench.md").read_text()
    assert output.split("record: ")[0].strip() in table
    picture = (tmp_path / "figures" / "bench.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert report(["bench", "--results", str(tmp_path), "--brief"]) == 0
    assert (tmp_path / "figures" / "bench.png").read_bytes() == picture
    assert (tmp_path / "tables" / "bench.md").read_text() == table


def test_backends_and_rules_can_be_chosen_and_the_record_goes_to_a_file(tmp_path, capsys):
    path = tmp_path / "here.json"
    arguments = ["--backends", "torch,sdpa", "--rules", "delta", "--shapes", "1,1,5,2,2", "--repeats", "1"]
    assert main(["ops", *arguments, "--dtype", "bfloat16", "--json", str(path)]) == 0
    record = read_record(path)
    measured = {"/".join(key.split("/")[:2]) for key in record["metrics"]} - {"matmul/gflops"}
    assert measured == {"delta/torch", "softmax/sdpa"}
    assert record["cell"] == "bfloat16" and record["updates"] == 1
    assert [row[1] for row in table_rows(capsys.readouterr().out)[1:]] == ["softmax attention (SDPA)", "delta, torch"]


def test_a_contender_with_another_result_is_not_timed(tmp_path, capsys, fla):
    fla(lambda q, k, v, beta: (q.sum() + k.sum() + beta.sum() + v, None))
    path = tmp_path / "here.json"
    arguments = ["--backends", "torch,fla", "--shapes", "1,1,5,2,2", "--repeats", "1", "--json", str(path)]
    assert main(["ops", *arguments]) == 1
    assert "delta/fla/1x1x5x2x2: WRONG" in capsys.readouterr().out
    assert not any(key.startswith("delta/fla") for key in read_record(path)["metrics"])


def test_what_is_too_slow_or_too_large_is_left_out_and_said_so(tmp_path, capsys, monkeypatch, no_other_libraries):
    calls = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def counted(q, *args, **kwargs):
        calls.append(q.shape[2])
        return attention(q, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(side_by_side, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(contenders, "REFERENCE_NUMBERS", 2 * 16 * 4 * 3)
    path = tmp_path / "here.json"
    assert main(["ops", "--shapes", SWEEP, "--repeats", "1", "--json", str(path)]) == 0
    assert set(calls) == {8}  # the longer ones were not tried
    left_out = read_record(path)["config"]["left_out"]
    assert left_out["softmax/sdpa/1x2x8x4x3"].startswith("takes 0 s, more than 0")
    assert left_out["softmax/sdpa/1x2x32x4x3"].endswith("at L = 8 already")
    assert "state for each step" in left_out["sum/reference/1x2x32x4x3"]
    assert "state for each step" not in left_out["sum/reference/1x2x16x4x3"]
    assert "- softmax/sdpa/1x2x32x4x3: takes more than" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--backends", "torch,flash"], ["'flash'", "torch, triton, reference, sdpa, fla"]),
        (["--backends", "triton"], ["delta/triton", "GPU"]),
        (["--backends", "fla"], ["fla-core is not installed"]),
        (["--rules", "fwm"], ["'fwm'", "sum, delta"]),
        (["--shapes", "huge"], ["table, sweep, all", "B,H,L,Dk,Dv", "'huge'"]),
        (["--shapes", "1,1,0,2,2"], ["whole numbers >= 1"]),
        (["--repeats", "0"], ["--repeats", "'0'"]),
        (["--json", "/nowhere/at/all.json"], ["/nowhere/at/all.json"]),
        (["--results", "/dev/null/results"], ["/dev/null/results"]),
        (["--device", "cuda"], ["no CUDA device", "--device cpu"]),
    ],
)
def test_mistakes_end_with_a_message_that_names_them(arguments, words, capsys, monkeypatch, no_other_libraries):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    try:
        status = main(["ops", "--shapes", "1,1,2,2,2", "--repeats", "1", *arguments])
    except SystemExit as stop:  # from argparse
        status = stop.code
    assert status == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for word in words:
        assert word in error


def test_help_does_not_load_torch():
    code = (
        "import sys\nfrom fwp_fairseq.cli.bench import main\n"
        "try: main(['ops', '--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "--backends" in done.stdout and done.stdout.endswith("False\n"), done.stderr


def record_times(results, times, row="cpu", device="cpu", **metrics):
    """A record with the given {(contender, shape): milliseconds}."""
    for (contender, shape), ms in times.items():
        metrics |= {f"{contender}/{shape}/ms": ms, f"{contender}/{shape}/gflops": 10.0, f"{contender}/{shape}/peak_mb": ms}
    config = {
        "device": device, "dtype": "float32", "threads": 2, "repeats": 7, "matmul_size": 1024, "left_out": {},
        "environment": {},
    }  # fmt: skip
    record = new_record(
        "bench_ops", row, 1, "bench", {"matmul/gflops": 40.0, **metrics}, 7, 60.0, 0, config, cell="float32",
        device=f"the {device} of the test",
    )  # fmt: skip
    return write_record(results, record)


def test_ratios_goals_and_growth_are_worked_out_from_the_record(tmp_path, capsys):
    shape = "4x8x384x32x32"
    times = {("softmax/sdpa", shape): 40.0, ("delta/torch", shape): 30.0, ("delta/fla", shape): 120.0}
    for length, ms in ((512, 100.0), (1024, 200.0), (2048, 410.0)):
        times["delta/torch", f"1x4x{length}x64x64"] = ms
    record_times(tmp_path, times)
    record_times(tmp_path, times, row="cuda-x", device="cuda")
    assert report(["bench", "--results", str(tmp_path)]) == 0
    cpu, cuda = (tmp_path / "tables" / "bench.md").read_text().split("## the cuda of the test")
    header, *rows = table_rows(cpu)
    row = dict(zip(header, next(row for row in rows if row[1] == "delta, torch")))
    assert (row["× SDPA"], row["× fla"], row["% of matmul"]) == ("0.750", "0.250", "25.0")
    assert row["goal"] == f"≤ {40 / 36:.2f}"
    assert "≤" not in cuda  # the goals are for CPUs
    assert [row for row in rows if row[0] == "last doubling"] == [["last doubling", "× 2.05"]] * 2
    capsys.readouterr()
    assert report(["bench", "--results", str(tmp_path), "--brief"]) == 0
    assert "4, 8, 384, 32, 32          0.750   goal 1.11" in capsys.readouterr().out


@pytest.mark.parametrize(
    "metrics, reason",
    [
        ({"loss": 0.5}, "'loss' is not of the form"),
        ({"delta/magic/1x1x2x2x2/ms": 1.0}, "is not of the form"),
        ({"delta/torch/1x1x2x2x2/ms": 1.0}, "has no gflops, peak_mb"),
        ({"delta/torch/1x1x2x2x2/ms": "fast"}, "must be a number >= 0, got 'fast'"),
    ],
)
def test_a_record_that_does_not_belong_is_named_and_the_rest_reported(tmp_path, capsys, metrics, reason):
    times = {("delta/torch", f"1x4x{length}x64x64"): 1.0 for length in (8, 16, 32)}
    record_times(tmp_path, times)
    path = record_times(tmp_path, {}, row="other", **metrics)
    assert report(["bench", "--results", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert str(path) in error and reason in error
    assert (tmp_path / "figures" / "bench.png").is_file()


def test_without_records_or_without_a_sweep_the_command_to_run_is_named(tmp_path, capsys):
    assert report(["bench", "--results", str(tmp_path)]) == 1
    assert f"fwp-bench ops --results {tmp_path}" in capsys.readouterr().err
    record_times(tmp_path, {("delta/torch", "1x1x8x2x2"): 1.0})
    assert report(["bench", "--results", str(tmp_path)]) == 1
    assert "--shapes sweep" in capsys.readouterr().err
    assert "delta, torch" in (tmp_path / "tables" / "bench.md").read_text()

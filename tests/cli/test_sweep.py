"""`fwp-sweep`: what it would run, what it skips, and what is left after it is interrupted."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fwp_fairseq import records
from fwp_fairseq.cli import sweep

ROOT = Path(__file__).resolve().parents[2]
PAPER_CELLS = {"figure_capacity": 240, "figure_update_rule": 80}


def lines_of_dry_run(capsys, *arguments):
    assert sweep.main([*arguments, "--dry-run"]) == 0
    return capsys.readouterr().out.splitlines()


def finish(folder, curve, size, scale="paper", experiment="figure_capacity", stop_reason="patience"):
    """A record as a run leaves it."""
    metrics = {"best_loss": 0.5, "last_loss": 0.5, "stop_reason": stop_reason}
    record = records.new_record(experiment, curve, 1, scale, metrics, 100, 1.0, 10, {}, cell=f"S{size}")
    return records.write_record(folder, record)


@pytest.mark.parametrize("figure", PAPER_CELLS)
def test_all_cells_of_the_paper_by_default(tmp_path, capsys, figure):
    lines = lines_of_dry_run(capsys, figure, "--results", str(tmp_path))
    assert lines[0] == f"{figure}: 0 of {PAPER_CELLS[figure]} cells are finished"
    sizes = [argument.split("=")[1] for line in lines[1:] for argument in line.split() if "num_keys" in argument]
    assert sum(len(size.split(",")) for size in sizes) == PAPER_CELLS[figure]


@pytest.mark.parametrize("option", ["--curves", "--sizes", "--seeds"])
def test_an_empty_list_does_not_stand_for_the_whole_figure(capsys, option):
    with pytest.raises(SystemExit):
        sweep.parse_arguments(["figure_capacity", option, ","])
    assert f"{option}: names nothing" in capsys.readouterr().err


def test_hydra_reads_the_results_folder_whatever_its_name(tmp_path):
    folder = tmp_path / "it's here, [mine]"
    options = sweep.parse_arguments(["figure_capacity", "--results", str(folder)])
    arguments = sweep.Multirun("elu", 1, (20,)).arguments(sweep.FIGURES["figure_capacity"], options)
    (override,) = OverridesParser.create().parse_overrides([a for a in arguments if "results_dir" in a])
    assert override.value() == str(folder)


@pytest.mark.parametrize(
    "given, project",
    [(["--wandb"], "fwp_fairseq"), (["--wandb", "mine"], "mine"), (["--wandb", "mine, ours"], "mine, ours"), ([], None)],
)
def test_the_wandb_project_is_one_and_may_be_left_out(given, project):
    options = sweep.parse_arguments(["figure_capacity", *given, "--jobs", "1"])
    arguments = sweep.Multirun("elu", 1, (20,)).arguments(sweep.FIGURES["figure_capacity"], options)
    overrides = OverridesParser.create().parse_overrides([argument for argument in arguments if "wandb" in argument])
    assert [override.value() for override in overrides] == ([project] if project else [])


def test_without_wandb_nothing_starts_and_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep.importlib.util, "find_spec", lambda name: None)
    assert sweep.main(["figure_capacity", "--sizes", "20", "--wandb", "--results", str(tmp_path)]) == 2
    assert "pip install 'fwp_fairseq[track]'" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


def test_a_line_of_a_dry_run_is_a_command_of_the_shell(tmp_path, capsys):
    folder = tmp_path / "my results (1)"
    _, line = lines_of_dry_run(capsys, "figure_capacity", "--curves", "elu", "--sizes", "20", "--results", str(folder))
    [override] = OverridesParser.create().parse_overrides([a for a in shlex.split(line) if "results_dir" in a])
    assert override.value() == str(folder)


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    lines_of_dry_run(capsys, "figure_capacity", "--sizes", "20", "--results", str(tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def test_the_curves_are_those_with_a_configuration():
    configured = {path.stem for path in (ROOT / "configs" / "synthetic" / "curve").glob("*.yaml")}
    assert configured == {curve for figure in sweep.FIGURES.values() for curve in figure.curves}


def test_finished_cells_are_skipped_and_a_corrupt_record_is_run_again(tmp_path, capsys):
    finish(tmp_path, "elu", 20)
    finish(tmp_path, "elu", 60, scale="mini").rename(tmp_path / "kept")
    path = records.record_path(tmp_path, "figure_capacity", "elu", 1, "S40")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    arguments = ["figure_capacity", "--curves", "elu", "--sizes", "20,40,60", "--results", str(tmp_path)]
    assert sweep.main([*arguments, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert "1 of 3 cells" in captured.out and "task.num_keys=40,60" in captured.out
    assert str(path) in captured.err and "run again" in captured.err
    assert path.read_text() == "{"


def test_the_record_of_another_cell_does_not_count(tmp_path, capsys):
    foreign = finish(tmp_path, "elu", 20)
    place = records.record_path(tmp_path, "figure_capacity", "elu", 1, "S40")
    place.parent.mkdir(parents=True)
    place.write_bytes(foreign.read_bytes())
    arguments = ["figure_capacity", "--curves", "elu", "--sizes", "20,40", "--results", str(tmp_path), "--dry-run"]
    assert sweep.main(arguments) == 0
    captured = capsys.readouterr()
    assert "1 of 2 cells" in captured.out and "another cell" in captured.err


def test_nothing_left_to_do(tmp_path, capsys):
    finish(tmp_path, "elu", 20)
    arguments = ["figure_capacity", "--curves", "elu", "--sizes", "20", "--results", str(tmp_path)]
    assert sweep.main(arguments) == 0
    assert "1 of 1 cells are finished" in capsys.readouterr().out


def test_a_mini_record_counts_only_for_a_mini_sweep(tmp_path, capsys):
    finish(tmp_path, "elu", 20, scale="mini")
    arguments = ["figure_capacity", "--curves", "elu", "--sizes", "20", "--results", str(tmp_path)]
    assert "0 of 1 cells" in lines_of_dry_run(capsys, *arguments)[0]
    assert "1 of 1 cells" in lines_of_dry_run(capsys, *arguments, "--max-update", "100")[0]


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["figure_nine"], "figure_update_rule"),
        (["figure_capacity", "--curves", "elu,relu"], "favor_512"),
        (["figure_capacity", "--sizes", "twenty"], "'twenty'"),
        (["figure_capacity", "--sizes", "20,-40"], "'-40'"),
        (["figure_capacity", "--seeds", "1.5"], "'1.5'"),
        (["figure_capacity", "--jobs", "0"], "--jobs"),
        (["figure_capacity", "--max-update", "0"], "--max-update"),
    ],
)
def test_wrong_arguments_are_named(capsys, arguments, named):
    with pytest.raises(SystemExit) as stop:
        sweep.main(arguments)
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("stop_reason, finished", [("max_update", 0), ("patience", 1)])
def test_a_mini_sweep_that_is_longer_trains_what_was_cut_off(tmp_path, capsys, stop_reason, finished):
    finish(tmp_path, "elu", 20, scale="mini", stop_reason=stop_reason)
    arguments = ["figure_capacity", "--curves", "elu", "--sizes", "20", "--results", str(tmp_path)]
    assert f"{finished} of 1 cells" in lines_of_dry_run(capsys, *arguments, "--max-update", "300")[0]
    assert "1 of 1 cells" in lines_of_dry_run(capsys, *arguments, "--max-update", "50")[0]


def test_a_results_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert sweep.main(["figure_capacity", "--results", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.fixture
def start(tmp_path):
    """Starts a sweep that writes below `tmp_path`, and sees to it that none outlives its test."""
    started = []

    def run(*arguments, cwd=ROOT, script=False):
        command = [sys.executable, "-m", "fwp_fairseq.cli.sweep", "figure_capacity", "--results", str(tmp_path)]
        # what runs in the background of a shell, as these tests may, starts its own processes deaf to Ctrl-C
        hearing = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command += arguments
        if script:
            command = ["bash", "-c", f"FWP_SCRIPT=$$ {shlex.join(command)} || status=$?"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        sweeping = subprocess.Popen(command, cwd=cwd, env=environment, **pipes, **hearing)
        started.append(sweeping)
        return sweeping

    yield run
    for sweeping in started:
        sweeping.kill()
        sweeping.wait()


def workers_of(folder):
    """Processes that write below `folder`'s logs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in os.readlink(process / "fd" / "1"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_sweep_ends_its_workers_and_is_continued(tmp_path, start, how):
    """S=20 is done in a moment, S=400 is not."""
    arguments = ["--curves", "dpfp_1", "--sizes", "20,400", "--jobs", "1"]
    interrupted = start(*arguments)
    done = records.record_path(tmp_path, "figure_capacity", "dpfp_1", 1, "S20")
    log = tmp_path / "logs" / "figure_capacity-worker0.log"
    wait_until(lambda: done.exists() and "S400: loss" in log.read_text())
    workers = workers_of(tmp_path)
    assert workers
    interrupted.send_signal(how)
    interrupted.wait(timeout=60)
    assert interrupted.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: not workers_of(tmp_path), 60)
    before = done.read_bytes()
    assert [path.name for path in tmp_path.rglob("*.json")] == ["seed1.json"]

    continued = start(*arguments, "--max-update", "100")
    output, _ = continued.communicate(timeout=600)
    assert continued.returncode == 0, output
    assert "1 of 2 cells are finished" in output and "S400" in output
    assert done.read_bytes() == before
    record = json.loads(records.record_path(tmp_path, "figure_capacity", "dpfp_1", 1, "S400").read_text())
    assert record["scale"] == "mini" and record["updates"] == 100


@pytest.mark.slow
def test_a_script_that_is_killed_leaves_no_sweep(tmp_path, start):
    script = start("--curves", "dpfp_1", "--sizes", "400", "--jobs", "1", script=True)
    log = tmp_path / "logs" / "figure_capacity-worker0.log"
    wait_until(lambda: log.exists() and "S400: loss" in log.read_text())
    script.kill()
    wait_until(lambda: not workers_of(tmp_path), 60)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.slow
def test_a_failed_cell_leaves_the_others_and_a_non_zero_exit(tmp_path, start):
    blocked = records.record_path(tmp_path, "figure_capacity", "elu", 1, "S4").parent
    blocked.parent.mkdir(parents=True)
    blocked.touch()  # a file where the folder of this cell should be
    arguments = ["--curves", "elu,dpfp_1", "--sizes", "4,5", "--jobs", "2", "--max-update", "100"]
    sweeping = start(*arguments, cwd=tmp_path)  # a sweep can be started from any folder
    output, _ = sweeping.communicate(timeout=600)
    assert sweeping.returncode == 1, output
    assert "FAILED elu S=4,5" in output
    found = {path.parent.relative_to(tmp_path / "runs" / "figure_capacity").as_posix() for path in tmp_path.rglob("*.json")}
    assert found == {"elu/S5", "dpfp_1/S4", "dpfp_1/S5"}

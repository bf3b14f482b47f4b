"""fwp-bench synthetic: updates are timed after the warm-up, their parts add up, and failures are reported."""

import pytest

from fwp_fairseq.benchmarks import synthetic
from fwp_fairseq.benchmarks.synthetic import PARTS, WARM_UP, Cell, Clock, profile_table, speed_table
from fwp_fairseq.cli.bench import main


def test_the_clock_times_the_updates_asked_for_and_ends_the_training(train):
    from fairseq.trainer import Trainer

    train_step = Trainer.train_step
    clock = Clock(steps=5)
    with clock.attached():
        overrides = ("curve=dpfp_1_delta", "task.results_dir=null", "dataset.disable_validation=true")
        assert train("update_rule", *overrides) == 0
    assert clock.updates_begun == WARM_UP + 5 + 1
    seconds = clock.per_update()
    assert all(seconds[part] > 0 for part in (*PARTS, synthetic.DRAWING))
    assert sum(seconds[part] for part in PARTS) < seconds["update"]
    assert Trainer.train_step is train_step


def test_tables_set_ours_next_to_the_authors_and_the_rest_is_the_trainer():
    seconds = {"update": 0.02, **dict.fromkeys(PARTS, 0.004), synthetic.DRAWING: 0.001}
    results = [(Cell("update_rule", "elu_delta", 40, authors=10.0, goal=40.0), seconds)]
    cells = [cell.strip() for cell in speed_table(results).splitlines()[2].strip("|").split("|")]
    assert cells == ["elu_delta", "40", "50.0", "10", "5.0", "40", "1.25"]
    cells = [cell.strip() for cell in profile_table(results).splitlines()[2].strip("|").split("|")]
    assert cells == ["elu_delta", "40", "20.0", "4.0", "4.0", "4.0", "4.0", "4.0", "1.0"]


@pytest.mark.slow
def test_the_command_prints_the_cells_it_trained_and_names_one_that_fails(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(synthetic, "CELLS", (Cell("capacity", "elu", 20, 46.8, 50),))
    assert main(["synthetic", "--steps", "2", "--threads", "1"]) == 0
    output = capfd.readouterr().out
    assert "CPU threads: 1" in output and output.count("| elu ") == 2
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(synthetic, "CELLS", (Cell("capacity", "no_such_curve", 20, 46.8, 50),))
    assert main(["synthetic", "--steps", "2"]) == 2
    error = capfd.readouterr().err
    assert "no_such_curve S=20 failed" in error and "curve/no_such_curve" in error

"""`fwp-report curves`: from records and from trainings that have none yet."""

import json

import pytest

from fwp_fairseq.cli import report
from fwp_fairseq.records import new_record, write_record
from fwp_fairseq.reports import curves, curves_plot

CURVES = {"updates": [10, 20, 30], "train_loss": [4.0, 3.0, 2.0], "valid_loss": [4.5, 3.25, 3.5]}


def training_log(row, updates=3, **fields):
    points = {name: values[:updates] for name, values in CURVES.items()}
    common = {"experiment": "table_x", "setting": "mini", "seed": 1, "status": "running", "curves": points}
    return {**common, "row": row, "updates": 10 * updates, "tokens": 640 * updates, **fields}


@pytest.fixture
def folders(tmp_path):
    """Records of two rows, of which one diverged, and trainings: one of them recorded, one still running."""
    results, runs = tmp_path / "results", tmp_path / "runs"
    common = {"experiment": "table_x", "cell": "mini", "seed": 1, "scale": "mini", "parameters": 1, "config": {}}
    for row, losses, status in (("delta", [4.5, 3.25, 3.5], "finished"), ("linear", [4.5, None, None], "diverged")):
        drawn = {**CURVES, "valid_loss": losses}
        measured = {"metrics": {"trained_tokens": 1920}, "updates": 30, "wall_seconds": 1.0, "status": status}
        write_record(results, new_record(row=row, curves=drawn, **measured, **common))
    for row, updates in (("delta", 1), ("softmax", 2)):
        folder = runs / "table_x" / row / "mini" / "seed1"
        folder.mkdir(parents=True)
        (folder / "training.json").write_text(json.dumps(training_log(row, updates)))
    return results, runs


@pytest.fixture
def draw(folders, tmp_path, monkeypatch):
    """`draw(*options)` runs the command; the curves it drew and its exit status."""
    drawn = []
    monkeypatch.setattr(curves, "png", lambda *arguments: drawn.append(arguments) or curves_plot.png(*arguments))

    def run(*options):
        results, runs = folders
        places = ["--results", str(results), "--runs", str(runs)]
        status = report.main(["curves", "table_x", *places, *options])
        return (drawn[-1] if drawn else None), status

    return run


def test_records_and_running_trainings_are_on_one_plot(draw, folders, capsys):
    (found, title, x, y), status = draw()
    assert status == 0 and (title, x, y) == ("table_x", "updates", "validation loss")
    assert [(curve.name, curve.status) for curve in found] == [
        ("delta/mini/seed1", "finished"),
        ("linear/mini/seed1", "diverged"),
        ("softmax/mini/seed1", "running"),
    ]
    delta, linear, softmax = found
    assert (delta.x, delta.y) == ([10, 20, 30], [4.5, 3.25, 3.5])
    assert (linear.x, linear.y) == ([10], [4.5])
    assert (softmax.x, softmax.y) == ([10, 20], [4.5, 3.25])
    printed = capsys.readouterr().out
    assert "| delta/mini/seed1   | finished |      30 | 3.5000 | 3.2500 |              20 |" in printed
    assert (folders[1] / "curves_table_x.png").read_bytes().startswith(b"\x89PNG")


def test_short_runs_do_not_take_the_place_of_long_ones(draw, folders):
    _, runs = folders
    for place in ("table_x/softmax/mini/seed1-10-updates", "preflight/table_x/softmax"):
        (runs / place).mkdir(parents=True)
        (runs / place / "training.json").write_text(json.dumps(training_log("softmax", 1, status="finished")))
    (drawn, *_), status = draw("--rows", "softmax")
    assert status == 0 and [len(curve.y) for curve in drawn] == [2, 1]
    (drawn, *_), _ = draw("--rows", "softmax", "--setting", "mini")
    assert [len(curve.y) for curve in drawn] == [2]


def test_rows_metric_and_tokens_as_asked(draw, tmp_path):
    out = tmp_path / "here" / "a.png"
    axes = ["--x", "tokens", "--metric", "train_loss"]
    (found, _, x, y), status = draw("--rows", "softmax,delta", *axes, "--out", str(out))
    assert status == 0 and (x, y) == ("tokens", "training loss") and out.exists()
    assert [(curve.row, curve.x, curve.y) for curve in found] == [
        ("softmax", [640, 1280], [4.0, 3.0]),
        ("delta", [640, 1280, 1920], [4.0, 3.0, 2.0]),
    ]


def test_the_loss_of_synthetic_runs_is_their_validation_loss(draw, folders, capsys):
    losses = {"updates": [100, 200], "loss": [0.4, 0.001]}
    measured = {"metrics": {}, "updates": 200, "wall_seconds": 1.0, "parameters": 1, "config": {}}
    write_record(folders[0], new_record("table_x", "elu", 1, "mini", cell="S20", curves=losses, **measured))
    (found, *_), status = draw("--rows", "elu")
    assert status == 0 and found[0].y == [0.4, 0.001]
    assert curves_plot.draw(found, "", "", "").axes[0].get_yscale() == "log"
    assert draw("--rows", "elu", "--metric", "train_loss")[1] == 1
    assert "--metric train_loss: elu/S20/seed1 has none, only updates, loss" in capsys.readouterr().err
    assert draw("--rows", "elu", "--x", "tokens")[1] == 1
    assert "elu/S20/seed1 does not say how many tokens" in capsys.readouterr().err


def test_several_settings_have_line_styles_and_seeds_share_a_label():
    lines = [
        curves_plot.Curve(row, setting, seed, "finished", [1, 2], [3.0, 2.0])
        for row in ("a", "b")
        for setting in ("mini", "small")
        for seed in (1, 2)
    ]
    axes = curves_plot.draw(lines, "title", "updates", "loss").axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a, mini", "a, small", "b, mini", "b, small"]
    drawn = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
    assert len(axes.get_lines()) == 8 and len(drawn) == 4


def test_what_cannot_be_drawn_is_said(draw, folders, capsys):
    for options, told in (
        (["--rows", "nix"], "--rows: no run of nix; there are runs of delta, linear, softmax"),
        (["--setting", "small"], "--setting: no run of small; there are runs of mini"),
        (["--out", str(folders[0] / "runs")], "cannot be written"),
    ):
        assert draw(*options)[1] == 1
        assert told in capsys.readouterr().err
    places = ["--results", str(folders[0]), "--runs", str(folders[1])]
    assert report.main(["curves", "table_y", *places]) == 1
    assert "no run of table_y" in capsys.readouterr().err


def test_a_log_that_is_none_is_named_and_the_rest_drawn(draw, folders, capsys):
    (folders[1] / "training.json").write_text('{"rows": 3}')
    (found, *_), status = draw("--rows", "delta")
    assert status == 1 and found[0].y[-1] == 3.5
    assert "training.json: is no log of a training" in capsys.readouterr().err


def test_a_training_before_its_first_validation_is_in_the_table_alone(draw, folders, capsys):
    log = training_log("softmax", updates=0)
    (folders[1] / "table_x" / "softmax" / "mini" / "seed1" / "training.json").write_text(json.dumps(log))
    (found, *_), status = draw()
    assert status == 0 and "softmax" not in [curve.row for curve in found]
    assert "| softmax/mini/seed1 | running  |" in capsys.readouterr().out
    assert draw("--rows", "softmax")[1] == 1
    assert "has a point of valid_loss yet" in capsys.readouterr().err

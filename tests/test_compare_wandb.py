"""scripts/compare_wandb.py on runs that were logged offline, and on a stand-in for wandb's API."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "compare_wandb.py"
LOSSES = {"linear": [3.0, 2.0, 2.5], "delta": [3.0, 1.5, 1.25]}


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("compare_wandb", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configuration(row):
    model = {"layers": 2, "update_rule": {"linear": "sum"}.get(row, row)}
    return {"row": row, "cell": "mini", "seed": 1, "model": model, "task": {"row": row}}


def history(row):
    return [
        {"updates": 10 * i, "tokens": 640 * i, "valid/loss": loss, "train/words_per_second": 512.0}
        for i, loss in enumerate(LOSSES[row], 1)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two rows left, one of them begun anew after it was killed early, and a run of another table."""
    import wandb

    folder = tmp_path_factory.mktemp("offline")
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_CONFIG_DIR", str(folder / "config"))
        for run_id, row, rows in (("a", "linear", 1), ("b", "linear", 3), ("c", "delta", 3)):
            names = {"name": f"table_x/{row}/mini/seed1", "group": "table_x", "id": run_id, "project": "p"}
            config = configuration(row)
            run = wandb.init(mode="offline", dir=str(folder), config=config, settings=settings, **names)
            for logged in history(row)[:rows]:
                run.log(logged, step=logged["updates"])
            run.summary["record/test_ppl"] = {"linear": 12.25, "delta": 3.5}[row]
            run.finish()
        wandb.init(mode="offline", dir=str(folder), id="d", group="table_y", name="other", settings=settings).finish()
        wandb.teardown()
    return folder


def test_offline_runs_stand_next_to_each_other(compare, folder, tmp_path, capsys):
    out = tmp_path / "curves" / "loss.png"
    assert compare.main(["table_x", "--offline", str(folder), "--x", "tokens", "--out", str(out)]) == 0
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    header, _, *runs = lines[:4]
    assert header == ["run", "state", "updates", "tokens", "best valid/loss", "last", "words/s", "peak MB", "test_ppl"]
    assert runs == [
        ["delta/mini/seed1", "finished", "30", "1,920", "1.25", "1.25", "512", "", "3.5"],
        ["linear/mini/seed1", "finished", "30", "1,920", "2", "2.5", "512", "", "12.25"],
    ]
    settings = [line for line in lines if line[0].startswith(("model.", "task.", "seed"))]
    assert settings == [["model.update_rule", "delta", "sum"]]
    assert out.read_bytes().startswith(b"\x89PNG")


def test_runs_of_a_project_come_through_the_api(compare, tmp_path, capsys, monkeypatch):
    import wandb

    asked = []

    class Api:
        def runs(self, path, filters):
            asked.append((path, filters))
            for row in LOSSES:
                names = {"id": row, "name": f"table_x/{row}/mini/seed1", "group": "table_x", "state": "running"}
                numbers = {"summary_metrics": {}, "scan_history": lambda: history(row)}
                yield SimpleNamespace(config=configuration(row), **names, **numbers)

    monkeypatch.setattr(wandb, "Api", Api)
    monkeypatch.setattr(wandb, "login", lambda prompt, verify: not prompt)
    out = str(tmp_path / "loss.png")
    assert compare.main(["table_x", "--entity", "team", "--project", "p", "--rows", "delta", "--out", out]) == 0
    assert asked == [("team/p", {"config.experiment": "table_x"})]
    printed = capsys.readouterr().out
    assert "delta/mini/seed1 | running | " in printed and "linear" not in printed
    assert "The settings are the same." in printed


def test_without_a_key_nothing_is_asked(compare, monkeypatch, capsys):
    import wandb

    monkeypatch.setattr(wandb, "login", lambda prompt, verify: prompt)
    assert compare.main(["table_x"]) == 1
    assert "wandb login" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, told",
    [
        (["table_z"], "no run of table_z; there are runs of table_x, table_y"),
        (["table_x", "--setting", "small"], "no run of table_x at setting small"),
        (["table_x", "--rows", "delta,nix"], "--rows: no run of nix; there are runs of delta, linear"),
        (["table_x", "--metric", "loss"], "no run has it; there are train/words_per_second, valid/loss"),
    ],
)
def test_what_is_not_there_is_said(compare, folder, options, told, capsys):
    assert compare.main([*options, "--offline", str(folder)]) == 1
    assert told in capsys.readouterr().err


def test_a_folder_without_runs_is_said(compare, tmp_path, capsys):
    assert compare.main(["table_x", "--offline", str(tmp_path)]) == 1
    assert "name the folder wandb/" in capsys.readouterr().err

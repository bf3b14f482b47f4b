"""The reader of wandb's logs against what wandb writes."""

import sys

import pytest

from fwp_fairseq.wandb_files import WandbFileError, framed, read_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One run of 400 rows, longer than a block of the log, and its continuation by 2 rows; another that failed."""
    import wandb

    folder = tmp_path_factory.mktemp("wandb")
    common = {"project": "p", "dir": str(folder), "mode": "offline", "resume": "allow"}
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_CONFIG_DIR", str(folder / "config"))
        run = wandb.init(id="aaa", name="long", group="g", config={"a": {"b": [1, 2]}}, settings=settings, **common)
        for update in range(1, 401):
            run.log({"train/loss": 1 / update, "updates": update, "text": "x" * 100}, step=update)
        run.finish()
        run = wandb.init(id="aaa", name="long", group="g", config={"c": 1}, settings=settings, **common)
        for update in (400, 401):
            run.log({"valid/loss": 2.0, "updates": update}, step=update)
        run.summary["record/test_ppl"] = 12.5
        run.finish()
        wandb.init(id="bbb", name="failed", settings=settings, **common).finish(exit_code=3)
        wandb.teardown()  # waits until all is written
    return folder


def test_what_was_logged_comes_back_with_its_continuation(folder):
    [log, *_] = sorted(folder.rglob("run-aaa.wandb"))
    assert log.stat().st_size > 2 * 2**15
    failed, run = read_runs(folder)
    assert (run.id, run.name, run.group, run.state) == ("aaa", "long", "g", "finished")
    assert [row["updates"] for row in run.history] == list(range(1, 402))
    assert run.history[399]["train/loss"] == 1 / 400 and run.history[399]["valid/loss"] == 2.0
    assert run.config["a"] == {"b": [1, 2]} and run.config["c"] == 1
    assert run.summary["record/test_ppl"] == 12.5 and run.summary["train/loss"] == 1 / 400
    assert (failed.name, failed.state) == ("failed", "failed (3)")


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_a_damaged_log_is_read_up_to_the_damage(folder, tmp_path, damage):
    path = sorted(folder.rglob("run-aaa.wandb"))[0]
    data = bytearray(path.read_bytes())
    whole = list(framed(path))
    if damage == "cut off":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 1
    (tmp_path / "run-aaa.wandb").write_bytes(data)
    left = list(framed(tmp_path / "run-aaa.wandb"))
    assert 0 < len(left) < len(whole) and left == whole[: len(left)]
    [run] = read_runs(tmp_path)
    assert run.state == "running or killed" and 100 < len(run.history) < 300


def test_folders_and_files_that_are_not_wandbs(tmp_path):
    with pytest.raises(WandbFileError, match="no run-"):
        read_runs(tmp_path)
    (tmp_path / "run-x.wandb").write_bytes(b"something else")
    with pytest.raises(WandbFileError, match="run-x.wandb: is no log"):
        read_runs(tmp_path)


def test_without_wandb_the_extra_is_named(folder, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(WandbFileError, match=r"pip install 'fwp_fairseq\[track\]'"):
        read_runs(folder)

"""What a training logs to wandb, offline: read back from the files that wandb leaves."""

import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from fwp_fairseq import wandb_run
from fwp_fairseq.cli import eval_lm
from fwp_fairseq.wandb_files import messages, read_runs

SMALL = ["curve=elu", "task.num_keys=6", "dataset.validate_interval_updates=10", "optimization.max_update=30"]
METRICS = {
    "train/loss", "train/learning_rate", "train/gradient_norm", "train/words_per_second", "train/peak_memory_mb",
    "valid/loss", "updates", "tokens",
}  # fmt: skip


@pytest.fixture(scope="module")
def wandb_in(tmp_path_factory):
    """`with wandb_in(folder):` has wandb write there, without a key, and waits until all is written."""
    no_key = tmp_path_factory.mktemp("no_key")

    @contextmanager
    def writing(folder):
        import wandb

        wandb.teardown()  # its service keeps the settings it was started with
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"DIR": folder, "CONFIG_DIR": no_key, "SILENT": "true", "CONSOLE": "off"}.items():
                patch.setenv(f"WANDB_{name}", str(value))
            patch.setenv("NETRC", str(no_key / "netrc"))
            for name in ("API_KEY", "MODE"):
                patch.delenv(f"WANDB_{name}", raising=False)
            yield
            wandb_run.finish()
            wandb.teardown()

    return writing


@pytest.fixture(scope="module")
def logged(wandb_in, train_lm, lm_data, tmp_path_factory):
    """A language model trained for 20 updates, resumed up to 40, and evaluated: the run, its record, its folders."""
    save_dir, folder = tmp_path_factory.mktemp("trained") / "delta", tmp_path_factory.mktemp("lm")
    with wandb_in(folder):
        for updates in (20, 40):
            overrides = [f"optimization.max_update={updates}", "common.log_interval=10"]
            overrides += ["common.wandb_project=project", f"common.tensorboard_logdir='{folder}/tensorboard'"]
            assert train_lm(save_dir, *overrides) == 0
        arguments = [save_dir / "checkpoint_best.pt", lm_data, "--stride", 16, "--results", folder / "results"]
        assert eval_lm.main([str(argument) for argument in arguments]) == 0
    [record] = (folder / "results").rglob("seed1.json")
    [run] = read_runs(folder)
    log = json.loads((save_dir / "training.json").read_text())
    return SimpleNamespace(run=run, record=json.loads(record.read_text()), log=log, folder=folder, save_dir=save_dir)


def test_a_resumed_and_evaluated_training_is_one_run(logged):
    segments = list(logged.folder.rglob("*.wandb"))
    assert len(segments) == 3 and len({path.name for path in segments}) == 1
    assert logged.run.id == json.loads((logged.save_dir / "wandb.json").read_text())["id"]
    assert logged.run.state == "finished"
    updates = [row["updates"] for row in logged.run.history]
    assert updates == [10, 20, 30, 40]
    for segment in segments:
        [run] = [message.run for message in messages(segment) if message.HasField("run")]
        assert run.display_name == "table_wikitext103/delta/mini/seed1" and run.run_group == "table_wikitext103"
        assert run.job_type == "train" and list(run.tags) == ["delta", "mini"] and run.project == "project"


def test_the_configuration_is_whole(logged):
    config = logged.run.config
    names = [config[name] for name in ("experiment", "row", "cell", "seed")]
    assert names == ["table_wikitext103", "delta", "mini", 1]
    assert config["model"]["d_model"] == 16 and config["optimizer"]["adam_betas"] == [0.9, 0.999]
    assert {"task", "dataset", "optimization", "lr_scheduler", "checkpoint", "common"} <= config.keys()
    for name in ("parameters", "state_size", "git_commit"):
        assert config[name] == logged.record[name]


def test_curves_are_those_of_the_record_against_updates_and_tokens(logged):
    validated = [row for row in logged.run.history if "valid/loss" in row]
    curves = logged.record["curves"]
    assert [row["updates"] for row in validated] == curves["updates"]
    assert [row["valid/loss"] for row in validated] == pytest.approx(curves["valid_loss"], abs=1e-5)
    assert validated[-1]["tokens"] == logged.log["tokens"] == logged.record["metrics"]["trained_tokens"]
    first, second = (row["tokens"] for row in logged.run.history[:2])
    assert 0 < first < second
    begun = min(logged.folder.rglob("*.wandb"), key=lambda path: path.parent.name)
    metrics = [message.metric for message in messages(begun) if message.HasField("metric")]
    axes = {metric.name or metric.glob_name: metric.step_metric for metric in metrics}
    assert axes == {"updates": "", "tokens": "", "*": "updates", "valid/loss": "updates"}


def test_language_models_have_the_common_metrics_and_perplexity(logged):
    names = set().union(*logged.run.history)
    assert METRICS | {"train/perplexity", "valid/perplexity"} <= names
    last = logged.run.history[-1]
    assert last["train/peak_memory_mb"] > 50 and last["train/learning_rate"] < 0.01


def test_the_evaluation_is_in_the_summary_and_its_record_beside_it(logged):
    summary = logged.run.summary
    assert summary["record/test_ppl"] == logged.record["metrics"]["test_ppl"]
    assert summary["record/status"] == "finished" and summary["record/parameters"] == logged.record["parameters"]
    [kept] = logged.folder.rglob("offline-run-*/files/seed1.json")
    assert json.loads(kept.read_text()) == logged.record


def test_tensorboard_goes_on_beside_it(logged):
    assert list((logged.folder / "tensorboard" / "train_inner").glob("events.*"))
    assert list((logged.folder / "tensorboard" / "valid").glob("events.*"))


@pytest.fixture(scope="module")
def figure(wandb_in, train, tmp_path_factory):
    """Two curves of a synthetic figure in one multirun: their folder."""
    folder = tmp_path_factory.mktemp("figure")
    with wandb_in(folder):
        arguments = ["-m", "curve=elu,dpfp_1", *SMALL[1:], "++common.wandb_project=project", "common.log_interval=10"]
        assert train("capacity", *arguments, f"task.results_dir={folder}", f"hydra.sweep.dir={folder}/hydra") == 0
    return folder


def test_each_job_of_a_multirun_is_a_run_with_its_record(figure):
    runs = read_runs(figure)
    assert [run.name for run in runs] == [f"figure_capacity/{row}/S6/seed1" for row in ("dpfp_1", "elu")]
    for run in runs:
        record = json.loads((figure / "runs" / f"{run.name}.json").read_text())
        assert [row["valid/loss"] for row in run.history] == pytest.approx(record["curves"]["loss"], abs=1e-5)
        assert run.summary["record/last_loss"] == record["metrics"]["last_loss"]
        assert (run.config["parameters"], run.config["state_size"]) == (record["parameters"], record["state_size"])


def test_synthetic_runs_have_the_common_metrics_and_count_pairs_as_tokens(figure):
    run = read_runs(figure)[0]
    assert METRICS <= set().union(*run.history)
    assert [(row["updates"], row["tokens"]) for row in run.history] == [(u, u * 32 * 6) for u in (10, 20, 30)]


def warnings_in(output):
    return [line for line in output.splitlines() if line.endswith("going on without it")]


def test_a_wandb_that_cannot_start_is_one_warning(wandb_in, train, tmp_path, monkeypatch, capsys):
    import wandb

    tries = []

    def no_network(**options):
        tries.append(options)
        raise wandb.errors.CommError("no network")

    monkeypatch.setattr(wandb, "init", no_network)
    with wandb_in(tmp_path):
        assert train("capacity", *SMALL, "++common.wandb_project=project", f"task.results_dir={tmp_path}") == 0
    assert len(tries) == 1 and list(tmp_path.rglob("seed1.json"))
    [warning] = warnings_in(capsys.readouterr().out)
    assert "no network" in warning


def test_without_wandb_a_training_that_asks_for_it_ends_and_names_the_extra(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train("capacity", *SMALL, "++common.wandb_project=project", f"task.results_dir={tmp_path}") != 0
    assert "pip install 'fwp_fairseq[track]'" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_a_wandb_that_breaks_in_the_middle_is_one_warning(wandb_in, train, tmp_path, monkeypatch, capsys):
    import wandb

    def died(run, *arguments, **options):
        raise ConnectionResetError("the service died")

    monkeypatch.setattr(wandb.Run, "log", died)
    arguments = [*SMALL, "++common.wandb_project=project", "common.log_interval=10", f"task.results_dir={tmp_path}"]
    with wandb_in(tmp_path):
        assert train("capacity", *arguments) == 0
    assert list(tmp_path.rglob("seed1.json"))
    [warning] = warnings_in(capsys.readouterr().out)
    assert "the service died" in warning


def test_an_evaluation_outlives_a_wandb_that_fails(tmp_path, caplog):
    (tmp_path / wandb_run.FILE).write_text("{")
    wandb_run.add_evaluation(tmp_path, tmp_path / "seed1.json")
    assert len(warnings_in(caplog.text)) == 1


def test_an_evaluation_of_a_training_without_wandb_opens_no_run(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setattr(wandb, "init", lambda **options: pytest.fail("a run was opened"))
    wandb_run.add_evaluation(tmp_path, tmp_path / "seed1.json")


@pytest.mark.parametrize(
    "asked, before, key, mode",
    [
        (None, None, False, "offline"),
        (None, None, True, "online"),
        ("online", None, False, "offline"),  # wandb would ask for a key
        ("offline", None, True, "offline"),
        ("dryrun", "online", True, "offline"),
        ("disabled", "online", True, "disabled"),
        (None, "offline", True, "offline"),  # one run is not half on the server, half in a folder
        ("online", "offline", True, "online"),
    ],
)
def test_online_only_with_a_key_and_as_asked(asked, before, key, mode, monkeypatch):
    import wandb

    def login(prompt=True, **options):
        assert not prompt
        return key

    monkeypatch.setattr(wandb, "login", login)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if asked is not None:
        monkeypatch.setenv("WANDB_MODE", asked)
    assert wandb_run.choose_mode(before) == mode


def test_the_other_processes_open_no_run(monkeypatch):
    from fairseq import checkpoint_utils

    opened = []
    monkeypatch.setattr(wandb_run, "begin", opened.append)
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint", lambda cfg, trainer: "loaded")
    wandb_run.install()
    for first in (True, False):
        cfg = SimpleNamespace(common=SimpleNamespace(wandb_project="project"))
        trainer = SimpleNamespace(task=SimpleNamespace(run_name=()), cfg=cfg, is_data_parallel_master=first)
        assert checkpoint_utils.load_checkpoint(None, trainer) == "loaded"
        assert len(opened) == 1

"""Synthetic runs through fairseq's training command, in this process."""

import json
import math
import operator

import numpy as np
import pytest
import torch

from fwp_fairseq import records
from fwp_fairseq.criterions.retrieval_error import RetrievalError, squared_errors
from fwp_fairseq.data.retrieval import RetrievalEvaluationSet
from fwp_fairseq.models.retrieval import RetrievalModel, RetrievalModelConfig

SMALL = ["task.num_keys=6", "dataset.validate_interval_updates=10", "optimization.max_update=30"]


def record(folder, row, cell="S6", experiment="figure_update_rule", seed=1):
    return json.loads((folder / "runs" / experiment / row / cell / f"seed{seed}.json").read_text())


@pytest.fixture(scope="module")
def multirun(train, tmp_path_factory):
    """Two curves × two sizes in one process; the larger size stops first by patience where state leaks."""
    folder = tmp_path_factory.mktemp("multirun")
    status = train(
        "update_rule", "-m", "curve=dpfp_1_delta,elu_delta", "task.num_keys=6,8", *SMALL[1:],
        f"task.results_dir={folder}", f"hydra.sweep.dir={folder}/hydra",
    )  # fmt: skip
    assert status == 0
    return folder


def test_each_job_of_a_multirun_writes_its_own_record(multirun):
    for row in ("dpfp_1_delta", "elu_delta"):
        for size in (6, 8):
            found = record(multirun, row, f"S{size}")
            assert found["config"]["task"]["num_keys"] == size
            assert found["curves"]["updates"] == [10, 20, 30] == found["curves"]["updates"][: found["updates"] // 10]
            assert found["metrics"]["stop_reason"] == "max_update" and found["scale"] == "mini"


def test_a_record_says_what_the_run_was(multirun):
    found = record(multirun, "dpfp_1_delta")
    losses, longer = found["curves"]["loss"], found["curves"]["loss_train_length"]
    assert found["metrics"]["best_loss"] == min(losses) and found["metrics"]["last_loss"] == losses[-1]
    assert found["metrics"]["best_loss_train_length"] == min(longer) and longer != losses
    assert found["config"]["model"]["feature_map"] == "dpfp" and found["config"]["model"]["nu"] == 1
    assert str(multirun) not in json.dumps(found)  # no path of this machine
    assert found["state_size"] == 128 * 6
    model = RetrievalModel(RetrievalModelConfig(feature_map="dpfp", nu=1, update_rule="delta"), 6)
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    assert found["device"] == ("cpu" if not torch.cuda.is_available() else torch.cuda.get_device_name())


@pytest.mark.parametrize(
    "curve", ["softmax", "elu", "dpfp_1", "favor_64"] + ["dpfp_1_sum", "dpfp_1_fwm", "favor_64_delta"]
)
def test_every_kind_of_curve_trains(train, tmp_path, curve):
    config = "capacity" if curve in ("softmax", "elu", "dpfp_1", "favor_64") else "update_rule"
    arguments = ["task.num_keys=4", "dataset.validate_interval_updates=40", "optimization.max_update=120"]
    assert train(config, f"curve={curve}", *arguments, f"task.results_dir={tmp_path}") == 0
    found = record(tmp_path, curve, "S4", f"figure_{config}")
    assert found["status"] == "finished"
    assert found["metrics"]["best_loss"] < 0.8 * 0.5 or curve == "dpfp_1_fwm" and found["metrics"]["best_loss"] < 0.5


def test_a_run_is_the_same_each_time_and_differs_by_seed(multirun, train, tmp_path):
    assert train("update_rule", "curve=dpfp_1_delta", *SMALL, f"task.results_dir={tmp_path}") == 0
    again = record(tmp_path, "dpfp_1_delta")
    assert again["curves"] == record(multirun, "dpfp_1_delta")["curves"]
    assert train("update_rule", "curve=dpfp_1_delta", *SMALL, "common.seed=2", f"task.results_dir={tmp_path}") == 0
    assert record(tmp_path, "dpfp_1_delta", seed=2)["curves"] != again["curves"]


def test_an_easy_cell_stops_at_the_threshold_and_counts_as_a_paper_run(train, tmp_path):
    assert train("capacity", "curve=dpfp_1", "task.num_keys=20", f"task.results_dir={tmp_path}") == 0
    found = record(tmp_path, "dpfp_1", "S20", "figure_capacity")
    assert found["metrics"]["stop_reason"] == "threshold" and found["metrics"]["best_loss"] <= 0.001
    assert found["scale"] == "paper" and "loss_train_length" not in found["curves"]


def test_divergence_is_recorded_and_no_crash(train, tmp_path):
    save_dir = tmp_path / "checkpoints"
    arguments = [*SMALL, "optimization.lr=[1e30]", f"checkpoint.save_dir={save_dir}"]
    assert train("capacity", "curve=elu", *arguments, f"task.results_dir={tmp_path}") == 0
    found = record(tmp_path, "elu", experiment="figure_capacity")
    assert found["status"] == "diverged" and found["metrics"]["last_loss"] is None
    assert not list(save_dir.glob("crash*"))


def test_a_run_that_is_interrupted_and_resumed_equals_one_that_is_not(train, tmp_path):
    def run(name, *more):
        folder = tmp_path / name
        arguments = [
            *SMALL[:2], "checkpoint.no_save=false", "checkpoint.save_interval_updates=10",
            "checkpoint.no_epoch_checkpoints=true", f"checkpoint.save_dir={folder}", f"task.results_dir={folder}",
        ]  # fmt: skip
        assert train("update_rule", "curve=favor_64_delta", *arguments, *more) == 0
        return record(folder, "favor_64_delta"), torch.load(folder / "checkpoint_last.pt")["model"]

    whole, weights = run("whole", "optimization.max_update=40")
    run("parts", "optimization.max_update=20")
    resumed, resumed_weights = run("parts", "optimization.max_update=40")
    assert resumed["curves"] == whole["curves"] and resumed["metrics"] == whole["metrics"]
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)


@pytest.mark.parametrize(
    "overrides, error",
    [
        (["curve=elu", "task.train_length=9", "task.num_keys=8"], "task.num_keys: 8 keys are too few for task.train_length=9"),
        (["curve=elu", "task.num_keys=0"], "task.num_keys: must be >= 1, got 0"),
        (["curve=elu", "optimization.max_update=0"], "task.max_update: must be >= 1, got 0"),
        (["curve=elu", "model.feature_map=relu"], "model.feature_map: got 'relu', allowed are elu, dpfp, favor, tanh"),
        (["curve=dpfp_1", "model.nu=0"], "model.nu: feature map dpfp needs an integer >= 1, got 0"),
        (["curve=dpfp_1", "model.nu=null"], "model.nu: feature map dpfp needs an integer >= 1, got None"),
        (["curve=favor_64", "model.m=-3"], "model.m: feature map favor needs an integer >= 1, got -3"),
        (["curve=favor_64", "~model.m"], "model.m: feature map favor needs an integer >= 1, got None"),
        (["curve=elu", "++model.nu=1"], "model.nu: only feature map dpfp has it, got 1"),
        (["curve=softmax", "++model.update_rule=delta"], "model.update_rule: only model.attention=fast_weights has it"),
        (["curve=elu", "task.experiment=figure_nine"], "task.experiment: got 'figure_nine', allowed are figure_capacity, "),
        (["curve=elu", "++model.update_rule=delta"], "task.row: elu is a curve of the paper, and this model is elu_delta"),
        (["curve=dpfp_1", "model.nu=2"], "task.row: dpfp_1 is a curve of the paper, and this model is dpfp_2"),
        (["curve=elu", "task.num_keys=6", "task.eval_length=4"], "dataset.valid_subset: a record of these settings needs"),
        (["curve=elu", "dataset.disable_validation=true"], "dataset.disable_validation: a record needs the evaluations"),
        (["curve=elu", "task.row=a/b"], "row: 'a/b' cannot name a folder"),
    ],
)
def test_bad_settings_end_with_an_error_that_names_them(train, tmp_path, capfd, overrides, error):
    assert train("capacity", *overrides, f"task.results_dir={tmp_path}") != 0
    captured = capfd.readouterr().err
    # Hydra repeats what was given in front of the error, and its hint about tracebacks follows
    [line] = [line for line in captured.splitlines() if line.startswith(error)]
    assert "Traceback" not in captured
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    "overrides, named",
    [
        (["curve=unheard_of"], "dpfp_1"),
        (["curve=elu", "task.num_keys=twelve"], "Value 'twelve' of type 'str' could not be converted to Integer"),
        (["curve=elu", "model.update_rule=oja"], "Invalid value 'oja', expected one of [sum, delta, fwm]"),
    ],
)
def test_what_hydra_refuses_is_named(train, tmp_path, capfd, overrides, named):
    assert train("capacity", *overrides, f"task.results_dir={tmp_path}") != 0
    captured = capfd.readouterr()
    assert named in captured.err + captured.out
    assert not list(tmp_path.rglob("*.json"))


def test_other_lengths_are_evaluated_as_they_are_named(train, tmp_path):
    arguments = [*SMALL, "task.eval_length=4", f"task.results_dir={tmp_path}"]
    assert train("capacity", "curve=elu", "dataset.valid_subset='valid_train_length,valid'", *arguments) != 0
    assert train("capacity", "curve=elu", "dataset.valid_subset='valid,valid_train_length'", *arguments) == 0
    found = record(tmp_path, "elu", experiment="figure_capacity")
    assert len(found["curves"]["loss_train_length"]) == 3 and found["scale"] == "mini"


@pytest.mark.parametrize(
    "override",
    [
        "optimization.clip_norm=0.1", "optimizer.adam_betas=[0.5,0.9]", "+optimizer.weight_decay=0.1",
        "++common.bf16=true", "lr_scheduler._name=inverse_sqrt",
    ],
)  # fmt: skip
def test_a_run_with_another_optimizer_is_no_paper_run_and_says_what_it_was(train, tmp_path, override):
    assert train("capacity", "curve=dpfp_1", "task.num_keys=2", override, f"task.results_dir={tmp_path}") == 0
    found = record(tmp_path, "dpfp_1", "S2", "figure_capacity")
    assert found["metrics"]["stop_reason"] != "max_update" and found["scale"] == "mini"
    config = found["config"]
    kept = [config["optimizer"][name] for name in ("adam_betas", "weight_decay")]
    kept += [config["lr_scheduler"]["_name"], config["task"]["clip_norm"], config["task"]["bf16"]]
    assert sum(map(operator.ne, kept, [[0.9, 0.999], 0.0, "fixed", 0.0, False])) == 1


def test_a_results_folder_that_cannot_be_written_ends_the_run_before_it_starts(train, tmp_path, capfd):
    (tmp_path / "file").touch()
    assert train("capacity", "curve=elu", f"task.results_dir={tmp_path}/file/results") != 0
    captured = capfd.readouterr()
    assert "cannot be written" in captured.err + captured.out and "update 100" not in captured.out


def test_an_idea_has_a_row_of_its_own(train, tmp_path):
    arguments = ["curve=elu_delta", "model.update_rule=sum", *SMALL, f"task.results_dir={tmp_path}"]
    assert train("update_rule", *arguments) != 0
    assert train("update_rule", *arguments, "task.row=mine") == 0
    assert record(tmp_path, "mine")["config"]["model"]["update_rule"] == "sum"


def test_a_mini_run_in_the_place_of_a_paper_run_is_refused_before_it_starts(train, tmp_path, capfd):
    paper = records.new_record(
        "figure_capacity", "elu", 1, "paper", {"best_loss": 0.5, "last_loss": 0.5}, 100, 1.0, 10, {}, cell="S6"
    )
    path = records.write_record(tmp_path, paper)
    kept = path.read_text()
    assert train("capacity", "curve=elu", *SMALL, f"task.results_dir={tmp_path}") != 0
    captured = capfd.readouterr()
    assert "holds a run at paper scale" in captured.err + captured.out and "update 10" not in captured.out
    assert path.read_text() == kept


@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize("parts", [dict(feature_map="elu"), dict(feature_map="favor", m=4)])
def test_the_evaluation_loss_is_the_mean_of_the_means_of_batches(parts, batch_size):
    dataset = RetrievalEvaluationSet(5, 9, 9, True, seed=4)
    sample = dataset.collater([dataset[0]])
    model = RetrievalModel(RetrievalModelConfig(update_rule="sum", d_key=8, **parts), 9).eval()
    criterion = RetrievalError(batch_size, task=None)
    torch.manual_seed(1)
    loss, sample_size, logged = criterion(model, sample)

    asked = [(r, c) for r, row in enumerate(sample["target"].tolist()) for c, target in enumerate(row) if target >= 0]
    means = []
    torch.manual_seed(1)  # FAVOR+ draws once a batch
    for start in range(0, len(asked), batch_size):
        rows, columns = np.array(asked[start : start + batch_size]).T
        state = torch.get_rng_state()
        errors = []
        for row, column in zip(rows, columns, strict=True):
            torch.set_rng_state(state)
            one = {name: tensor[row : row + 1] for name, tensor in sample["net_input"].items()}
            errors.append(squared_errors(model(**one), sample["target"][row : row + 1])[0, column])
        means.append(torch.stack(errors).mean())
    torch.testing.assert_close(loss, torch.stack(means).mean())
    assert sample_size == 1 and logged["nqueries"] == len(asked) and math.isfinite(logged["loss"])

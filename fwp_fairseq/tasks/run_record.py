"""The record of a training that left a checkpoint and `training.json`, with the numbers of its evaluation."""

import math

from omegaconf import OmegaConf

from fwp_fairseq import records
from fwp_fairseq.tasks.training_log import read_training_log


def run_record(cfg, log: dict, metrics: dict, curves: dict, kept: dict, **fields) -> dict:
    """A run record, see `fwp_fairseq.records.new_record`.

    cfg: configuration in the checkpoint; log: content of training.json; metrics and curves: of the evaluation; kept:
    section of the configuration -> names of what determines the numbers there, or None for all; fields: parameters,
    state_size and scale. A run whose training diverged, or one of whose metrics is no number, is `diverged`.
    """
    numbers = [value for value in metrics.values() if isinstance(value, float)]
    diverged = log["status"] == "diverged" or not all(map(math.isfinite, numbers))
    metrics = {**metrics, "trained_tokens": log["tokens"]}
    if log["curves"]["valid_loss"]:
        best = min(log["curves"]["valid_loss"])
        metrics["best_validation_loss"] = best
        metrics["best_update"] = log["curves"]["updates"][log["curves"]["valid_loss"].index(best)]
    if diverged:
        metrics["reason"] = log["reason"] or "the evaluation gave no number"
    record = records.new_record(
        experiment=cfg.task.experiment,
        row=cfg.task.row,
        cell=cfg.task.setting,
        seed=cfg.common.seed,
        status="diverged" if diverged else "finished",
        metrics=metrics,
        curves={**log["curves"], **curves},
        updates=log["updates"],
        wall_seconds=log["wall_seconds"],
        device=log["device"],
        config=kept_settings(cfg, kept),
        **fields,
    )
    record["peak_memory_mb"] = log["peak_memory_mb"]  # of the training, not of this process
    return record


def ended_training(folder) -> dict:
    """The training.json of a folder of checkpoints; RecordError where its training has no end to record."""
    log = read_training_log(folder)
    if log is None:
        raise records.RecordError(f"{folder}: no training.json there, so no record can be written")
    if log["status"] == "running":
        raise records.RecordError(
            f"{folder}: the training has not ended (update {log['updates']}), so there is nothing to record yet; leave "
            "--results out to look at it, or go on training by the same command"
        )
    return log


def check_replaces(results_dir, log: dict, number: str, splits: list, way: dict) -> None:
    """Before an evaluation: RecordError where its record would hold less than, or something else than, the one there.

    number: what a split has in metrics, as in `test_ppl`; way: metrics that say how it is evaluated.
    """
    path = records.record_path(results_dir, log["experiment"], log["row"], log["seed"], log["setting"])
    try:
        metrics = records.read_record(path)["metrics"]
    except records.RecordError:
        return  # none, or one that is no record, which write_record keeps aside
    lost = [name.removesuffix(f"_{number}") for name in metrics if name.endswith(f"_{number}")]
    lost = [split for split in lost if split not in splits]
    if lost:
        raise records.RecordError(
            f"{path} has numbers of {', '.join(lost)} too, which would be lost: evaluate "
            f"{' '.join(f'--split {split}' for split in [*lost, *splits])}, or write to another --results"
        )
    for name, value in way.items():
        if name in metrics and metrics[name] != value:
            raise records.RecordError(
                f"{path} was evaluated with {name} {metrics[name]}, this would be {value}: give the same, or write to "
                "another --results"
            )


def kept_settings(cfg, kept: dict) -> dict:
    """What determines the numbers, and nothing that tells the machine."""
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    return {
        section: plain[section] if names is None else {name: plain[section][name] for name in names}
        for section, names in kept.items()
    }

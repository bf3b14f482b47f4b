"""The record of a training that left a checkpoint and `training.json`, with the numbers of its evaluation."""

import math

from omegaconf import OmegaConf

from fwp_fairseq import records


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


def kept_settings(cfg, kept: dict) -> dict:
    """What determines the numbers, and nothing that tells the machine."""
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    return {
        section: plain[section] if names is None else {name: plain[section][name] for name in names}
        for section, names in kept.items()
    }

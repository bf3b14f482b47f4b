"""The record of a language model: how it was trained, from its checkpoint and `training.json`, and its perplexities."""

import math

from omegaconf import OmegaConf

from fwp_fairseq import records
from fwp_fairseq.tasks.paper_settings import follows_the_paper

KEPT = {
    "task": ("order", "carry_state", "tokens_per_sample", "tokens_per_sample_eval", "setting"),
    "dataset": ("batch_size", "batch_size_valid", "validate_interval_updates"),
    "optimization": ("lr", "clip_norm", "max_update", "update_freq"),
    "common": ("seed", "fp16", "bf16"),
    "distributed_training": ("distributed_world_size", "ddp_backend"),
}


def language_model_record(cfg, model, dictionary, log: dict, metrics: dict, curves: dict) -> dict:
    """A run record, see `fwp_fairseq.records.new_record`.

    cfg: configuration in the checkpoint; log: content of training.json; metrics and curves: of the evaluation, `context`
    and `stride` among the metrics. A run whose training diverged, or whose perplexity is no number, is `diverged`.
    """
    numbers = [value for value in metrics.values() if isinstance(value, float)]
    diverged = log["status"] == "diverged" or not all(map(math.isfinite, numbers))
    metrics = {**metrics, "trained_tokens": log["tokens"]}
    if log["curves"]["valid_loss"]:
        best = min(log["curves"]["valid_loss"])
        metrics["best_validation_loss"] = best
        metrics["best_update"] = log["curves"]["updates"][log["curves"]["valid_loss"].index(best)]
    if diverged:
        metrics["reason"] = log["reason"] or "the perplexity is not a number"
    record = records.new_record(
        experiment=cfg.task.experiment,
        row=cfg.task.row,
        cell=cfg.task.setting,
        seed=cfg.common.seed,
        scale="paper" if follows_the_paper(cfg, dictionary, log, metrics) else "mini",
        status="diverged" if diverged else "finished",
        metrics=metrics,
        curves={**log["curves"], **curves},
        updates=log["updates"],
        wall_seconds=log["wall_seconds"],
        parameters=model.parameter_count,
        state_size=model.state_size(cfg.task.tokens_per_sample_eval or cfg.task.tokens_per_sample),
        device=log["device"],
        config=kept_settings(cfg),
    )
    record["peak_memory_mb"] = log["peak_memory_mb"]  # of the training, not of this process
    return record


def kept_settings(cfg) -> dict:
    """What determines the numbers, and nothing that tells the machine."""
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    kept = {section: {name: plain[section][name] for name in names} for section, names in KEPT.items()}
    return {**kept, **{section: plain[section] for section in ("model", "optimizer", "lr_scheduler")}}

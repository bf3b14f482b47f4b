"""The record of a language model: how it was trained, from its checkpoint and `training.json`, and its perplexities."""

import math

from omegaconf import OmegaConf

from fwp_fairseq import records

SIZES = {
    "small": {"d_model": 128, "tokens_per_sample": 256, "rows": 96, "max_update": 500_000},
    "medium": {"d_model": 256, "tokens_per_sample": 384, "rows": 56, "max_update": 400_000},
}
PAPER_DICTIONARY = 267_737  # WikiText-103's 267,735 types, <s> and <pad>
KEPT = {
    "task": ("order", "tokens_per_sample", "setting"),
    "dataset": ("batch_size", "batch_size_valid", "validate_interval_updates"),
    "optimization": ("lr", "clip_norm", "max_update", "update_freq"),
    "common": ("seed", "fp16", "bf16"),
    "distributed_training": ("distributed_world_size", "ddp_backend"),
}


def language_model_record(cfg, model, dictionary, log: dict, metrics: dict) -> dict:
    """A run record, see `fwp_fairseq.records.new_record`.

    cfg: configuration in the checkpoint; log: content of training.json; metrics: of the evaluation, `stride` among
    them. A run whose training diverged, or whose perplexity is no number, is `diverged`.
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
        scale="paper" if follows_the_paper(cfg, dictionary, log, metrics.get("stride")) else "mini",
        status="diverged" if diverged else "finished",
        metrics=metrics,
        curves=log["curves"],
        updates=log["updates"],
        wall_seconds=log["wall_seconds"],
        parameters=model.parameter_count,
        state_size=model.state_size(cfg.task.tokens_per_sample),
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


def follows_the_paper(cfg, dictionary, log, stride) -> bool:
    """Whether every setting is the paper's, so that the record may stand beside its numbers."""
    sizes = SIZES.get(cfg.task.setting)
    if sizes is None or len(dictionary) != PAPER_DICTIONARY:
        return False
    rows = cfg.dataset.batch_size * cfg.optimization.update_freq[0] * cfg.distributed_training.distributed_world_size
    model, scheduler = cfg.model, cfg.lr_scheduler
    return (
        {name: sizes[name] for name in ("rows", "max_update")} == {"rows": rows, "max_update": cfg.optimization.max_update}
        and (model.d_model, cfg.task.tokens_per_sample) == (sizes["d_model"], sizes["tokens_per_sample"])
        and (model.layers, model.heads, model.d_ffn, model.dropout) == (16, 8, 2048, 0.1)
        and model.cutoffs == "20000,40000,200000"
        and (scheduler._name, scheduler.warmup_updates) == ("cosine", 2000)
        and math.isclose(cfg.optimization.lr[0], 2.5e-4)
        and math.isclose(cfg.optimization.clip_norm, 0.25)
        and cfg.dataset.validate_interval_updates == 4000
        and cfg.task.order == "stream"
        and (log["status"] == "diverged" or log["updates"] == sizes["max_update"] and stride == 1)
    )

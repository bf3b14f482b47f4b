"""The record of a language model: how it was trained, from its checkpoint and `training.json`, and its perplexities."""

from fwp_fairseq.tasks.paper_settings import follows_the_paper
from fwp_fairseq.tasks.run_record import run_record

KEPT = {
    "task": ("order", "carry_state", "tokens_per_sample", "tokens_per_sample_eval", "setting"),
    "dataset": ("batch_size", "batch_size_valid", "validate_interval_updates"),
    "optimization": ("lr", "clip_norm", "max_update", "update_freq"),
    "common": ("seed", "fp16", "bf16"),
    "distributed_training": ("distributed_world_size", "ddp_backend"),
    "model": None,
    "optimizer": None,
    "lr_scheduler": None,
}


def language_model_record(cfg, model, dictionary, log: dict, metrics: dict, curves: dict) -> dict:
    """Arguments as of `run_record`; `context` and `stride` are among the metrics."""
    return run_record(
        cfg,
        log,
        metrics,
        curves,
        KEPT,
        scale="paper" if follows_the_paper(cfg, dictionary, log, metrics) else "mini",
        parameters=model.parameter_count,
        state_size=model.state_size(
            metrics.get("window") or cfg.task.tokens_per_sample_eval or cfg.task.tokens_per_sample
        ),
    )

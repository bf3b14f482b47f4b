"""The record of a translation model: how it was trained, from its checkpoint and `training.json`, and its BLEU."""

import math

from fwp_fairseq.tasks.configured import as_configured
from fwp_fairseq.tasks.run_record import run_record

KEPT = {
    "task": ("setting", "source_lang", "target_lang"),
    "dataset": ("max_tokens", "validate_interval_updates"),
    "optimization": ("lr", "clip_norm", "max_update", "update_freq"),
    "common": ("seed", "fp16", "bf16"),
    "distributed_training": ("distributed_world_size", "ddp_backend"),
    "model": None,
    "criterion": None,
    "optimizer": None,
    "lr_scheduler": None,
}
TARGET_TOKENS = 25_000  # of an update, about
NEWSTEST = {"valid": 3000, "test": 3003}  # sentences of newstest2013 and newstest2014


def translation_record(cfg, model, log: dict, metrics: dict, lengths: tuple) -> dict:
    """Arguments as of `run_record`; lengths: mean source and target tokens of a test sentence, for the state's size."""
    return run_record(
        cfg,
        log,
        metrics,
        {},
        KEPT,
        scale="paper" if follows_the_paper(cfg, log, metrics) else "mini",
        parameters=model.parameter_count,
        state_size=model.state_size(*lengths),
    )


def follows_the_paper(cfg, log: dict, metrics: dict) -> bool:
    """Whether the data is WMT14's and every setting that of configs/wmt14_en_de/base.yaml."""
    model, optimization = cfg.model, cfg.optimization
    tokens = cfg.dataset.max_tokens * optimization.update_freq[0] * cfg.distributed_training.distributed_world_size
    sizes = (model.d_model, model.encoder_layers, model.decoder_layers, model.heads, model.d_ffn, model.dropout)
    evaluated = all(metrics.get(f"{split}_sentences") == count for split, count in NEWSTEST.items())
    return (
        cfg.task.setting == "base"
        and as_configured(cfg, "wmt14_en_de", [f"row={cfg.task.row}"])
        and sizes == (512, 6, 6, 8, 2048, 0.1)
        and abs(tokens - TARGET_TOKENS) <= TARGET_TOKENS / 20
        and (cfg.lr_scheduler._name, cfg.lr_scheduler.warmup_updates) == ("inverse_sqrt", 4000)
        and math.isclose(optimization.lr[0], 7e-4)
        and math.isclose(cfg.criterion.label_smoothing, 0.1)
        and optimization.max_update == 100_000
        and (metrics.get("beam"), metrics.get("length_penalty")) == (4, 0.6)
        and (log["status"] == "diverged" or log["updates"] == optimization.max_update and evaluated)
    )

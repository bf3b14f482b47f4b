"""Whether a language model was trained and evaluated exactly as in the paper, so that it may stand beside its numbers."""

import math

from fwp_fairseq.tasks.configured import as_configured

SIZES = {
    "small": {"d_model": 128, "segment": 256, "rows": 96, "max_update": 500_000},
    "medium": {"d_model": 256, "segment": 384, "rows": 56, "max_update": 400_000},
}
WARMUP = 2000
# The Transformer-XL's (segment, memory) are equal, and an update has as many tokens as the other models'.
XL_SEGMENTS = (8, 64, 128, 384)
XL_MAX_UPDATE, XL_WARMUP, XL_CLAMP_LEN = 200_000, 1000, 384
# Tokens of the validation and test text but for the very first, which has no context.
SCORED = {"valid_tokens": 217_645, "test_tokens": 245_568}
PAPER_DICTIONARY = 267_737  # WikiText-103's 267,735 types, <s> and <pad>


def follows_the_paper(cfg, dictionary, log: dict, metrics: dict) -> bool:
    """cfg: configuration in the checkpoint; log: content of training.json; metrics: of the evaluation."""
    sizes = SIZES.get(cfg.task.setting)
    if sizes is None or len(dictionary) != PAPER_DICTIONARY or cfg.model.d_model != sizes["d_model"]:
        return False
    follows = follows_for_transformer_xl if cfg.model._name == "fwp_transformer_xl" else follows_for_fwp_lm
    return (
        follows(cfg, sizes)
        and has_the_common_recipe(cfg)
        and as_configured(cfg, "wikitext103", row_overrides(cfg.task))
        and (log["status"] == "diverged" or log["updates"] == cfg.optimization.max_update and evaluated(cfg, metrics))
    )


def row_overrides(task) -> list:
    """What the scripts give Hydra for a row, see `row_options` in scripts/table_*.sh."""
    if task.experiment == "table_wikitext103_ablation":
        return ["row=delta", f"+ablation={task.row}"]
    if task.experiment != "table_wikitext103_unbounded":
        return [f"row={task.row}"]
    if task.row.startswith("transformer_xl"):
        return ["recipe=authors", "row=transformer_xl", f"+unbounded/{task.setting}={task.row}"]
    return [f"row={task.row}", "+unbounded=fast_weights"]


def has_the_common_recipe(cfg) -> bool:
    model = cfg.model
    return (
        (model.layers, model.heads, model.d_ffn, model.dropout) == (16, 8, 2048, 0.1)
        and model.cutoffs == "20000,40000,200000"
        and cfg.lr_scheduler._name == "cosine"
        and math.isclose(cfg.optimization.lr[0], 2.5e-4)
        and math.isclose(cfg.optimization.clip_norm, 0.25)
        and cfg.dataset.validate_interval_updates == 4000
        and cfg.task.order == "stream"
    )


def follows_for_fwp_lm(cfg, sizes) -> bool:
    expected = (sizes["rows"], sizes["segment"], sizes["max_update"], WARMUP)
    return expected == schedule(cfg) and not (cfg.task.carry_state and cfg.model.positional_encoding)


def follows_for_transformer_xl(cfg, sizes) -> bool:
    segment, model = cfg.task.tokens_per_sample, cfg.model
    expected = (sizes["rows"] * sizes["segment"] / segment, segment, XL_MAX_UPDATE, XL_WARMUP)
    return (
        segment in XL_SEGMENTS
        and expected == schedule(cfg)
        and (cfg.task.carry_state, model.mem_len, model.clamp_len_eval) == (True, segment, XL_CLAMP_LEN)
        and model.mem_len_eval in (None, segment)
        and cfg.task.tokens_per_sample_eval in (None, segment)
    )


def schedule(cfg) -> tuple:
    rows = cfg.dataset.batch_size * cfg.optimization.update_freq[0] * cfg.distributed_training.distributed_world_size
    return rows, cfg.task.tokens_per_sample, cfg.optimization.max_update, cfg.lr_scheduler.warmup_updates


def evaluated(cfg, metrics) -> bool:
    """Both texts, each token with as much context as the paper gives it."""
    way = ("stream", None) if cfg.task.carry_state else ("window", 1)
    window = cfg.task.tokens_per_sample_eval or cfg.task.tokens_per_sample
    return (
        (metrics.get("context"), metrics.get("stride") if way[1] else None) == way
        and metrics.get("window") == window
        and all(metrics.get(name) == count for name, count in SCORED.items())
    )

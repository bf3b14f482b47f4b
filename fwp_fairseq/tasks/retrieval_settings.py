"""Which settings a synthetic run may have, which of them are the paper's, and where its record lies."""

import math

from fwp_fairseq import records
from fwp_fairseq.cli.sweep import FIGURES

EXPERIMENTS = tuple(FIGURES)


def sequences_per_update(cfg) -> int:
    """The batch size, however it is divided over accumulated batches and processes."""
    return cfg.batch_size * cfg.update_freq[0] * cfg.world_size


def train_length(cfg) -> int:
    """Pairs of a training sequence."""
    return cfg.train_length or cfg.num_keys * (2 if cfg.repetition else 1)


def eval_length(cfg) -> int:
    """Pairs of the sequences whose loss decides."""
    return cfg.eval_length or cfg.num_keys


def subsets(cfg) -> tuple:
    """What is evaluated, as fairseq names it."""
    return ("valid",) if train_length(cfg) == eval_length(cfg) else ("valid", "valid_train_length")


def cell_name(cfg) -> str:
    return f"S{cfg.num_keys}"


def check_settings(cfg) -> None:
    """`ValueError` naming the field, the value and what is allowed."""
    if cfg.experiment not in EXPERIMENTS:
        raise ValueError(f"task.experiment: got {cfg.experiment!r}, allowed are {', '.join(EXPERIMENTS)}")
    for name in ("num_keys", "train_length", "eval_length", "eval_sequences", "stop_patience", "batch_size", "max_update"):
        value = getattr(cfg, name)
        if value is not None and value < 1:
            raise ValueError(f"task.{name}: must be >= 1, got {value}")
    for name in ("train_length", "eval_length"):
        length = getattr(cfg, name)
        if not cfg.repetition and length is not None and length > cfg.num_keys:
            raise ValueError(
                f"task.num_keys: {cfg.num_keys} keys are too few for task.{name}={length} pairs without repetition; "
                "raise num_keys or set task.repetition=true"
            )
    if cfg.results_dir is not None:
        check_evaluation(cfg)


def check_evaluation(cfg) -> None:
    """The losses of a record are those that the stopping rule was told of."""
    if cfg.disable_validation:
        raise ValueError("dataset.disable_validation: a record needs the evaluations, got true; leave it out")
    needed = ",".join(subsets(cfg))
    if cfg.valid_subset != needed:
        raise ValueError(
            f"dataset.valid_subset: a record of these settings needs {needed}, got {cfg.valid_subset}; "
            f"give \"dataset.valid_subset='{needed}'\""
        )


def check_record(cfg, model_cfg) -> None:
    """Before hours of training: `ValueError` where the record would lie among those of another curve of the paper,
    `RecordError` where it could not take the place of the one that is there."""
    name = curve_name(cfg, model_cfg)
    if cfg.row != name and cfg.row in FIGURES[cfg.experiment].curves:
        raise ValueError(
            f"task.row: {cfg.row} is a curve of the paper, and this model is {name}; give it a row of its own, "
            f"task.row={name} say"
        )
    if cfg.max_update != 100_000 or not follows_the_paper(cfg, model_cfg, reason=""):
        records.check_no_paper_run(
            records.record_path(cfg.results_dir, cfg.experiment, cfg.row, cfg.seed, cell_name(cfg))
        )


def curve_name(cfg, model_cfg) -> str:
    """What the curve of a model is called in its figure: dpfp_2, softmax; with repetition dpfp_2_delta, tanh_fwm."""
    if model_cfg.attention == "softmax":
        return "softmax"
    size = {"dpfp": [model_cfg.nu], "favor": [model_cfg.m]}.get(model_cfg.feature_map, [])
    named_rule = cfg.experiment == "figure_update_rule" or model_cfg.update_rule != "sum"
    return "_".join(map(str, [model_cfg.feature_map, *size, *[model_cfg.update_rule] * named_rule]))


def follows_the_paper(cfg, model_cfg, reason) -> bool:
    """Whether every setting is the paper's, so that the record may stand beside its figures. A lower limit on the
    updates does no harm to a run that ended ahead of it."""
    tanh_fwm = model_cfg.feature_map == "tanh"
    return (
        (cfg.max_update == 100_000 or reason != "max_update" and cfg.max_update < 100_000)
        and cfg.validate_interval_updates == 100
        and sequences_per_update(cfg) == (128 if tanh_fwm else 32)
        and math.isclose(cfg.lr[0], 1e-4 if tanh_fwm else 1e-3)
        and (cfg.stop_loss, cfg.stop_patience, cfg.eval_sequences, model_cfg.d_key) == (0.001, 10, 20, 64)
        and cfg.repetition == (cfg.experiment == "figure_update_rule")
        and train_length(cfg) == cfg.num_keys * (2 if cfg.repetition else 1)
        and eval_length(cfg) == cfg.num_keys
        and has_the_optimizer_of_the_paper(cfg)
    )


def has_the_optimizer_of_the_paper(cfg) -> bool:
    """Plain Adam in float32 at one rate."""
    adam, schedule = cfg.optimizer, cfg.lr_scheduler
    return (
        adam._name in ("torch_adam", "adam")
        and (tuple(adam.adam_betas), adam.adam_eps, adam.weight_decay) == ((0.9, 0.999), 1e-8, 0.0)
        and schedule._name == "fixed"
        and (schedule.warmup_updates, schedule.force_anneal) == (0, None)
        and (len(cfg.lr), cfg.clip_norm, cfg.fp16, cfg.bf16) == (1, 0.0, False, False)
    )

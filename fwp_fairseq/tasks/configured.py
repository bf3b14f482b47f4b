"""Whether a training had the settings that the configuration of its row gives it, whatever was laid over them."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
WHOLE = ("model", "criterion", "optimizer", "lr_scheduler")
PARTS = {
    "task": (
        "order", "carry_state", "tokens_per_sample", "tokens_per_sample_eval", "source_lang", "target_lang",
        "divergence_span",
    ),
    "optimization": ("lr", "clip_norm", "max_update"),
    "dataset": ("validate_interval_updates", "valid_subset", "train_subset", "max_valid_steps"),
    "common": ("fp16", "bf16"),
}  # fmt: skip
OF_FAIRSEQ = {"valid_subset": "valid", "train_subset": "train", "max_valid_steps": None}  # its defaults
WITHOUT_EFFECT = {"backend"}  # ways to compute the same


def as_configured(cfg, folder: str, overrides: list) -> bool:
    """Compare all that determines the numbers with `configs/folder/SETTING.yaml` and `overrides`, but for the seed and
    the division of a batch over devices.

    cfg: configuration in a checkpoint; SETTING is its `task.setting`. False where there is no such configuration.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS / folder), version_base="1.1"):
            expected = plain(compose(cfg.task.setting, overrides=overrides))
    except HydraException:
        return False
    found = plain(cfg)
    if len(cfg.optimization.update_freq) != 1:  # one for each epoch
        return False
    return not any(
        differing(found[section], expected[section], defaults(section, expected[section]["_name"])) for section in WHOLE
    ) and all(
        found[section].get(name, OF_FAIRSEQ.get(name)) == expected[section].get(name, OF_FAIRSEQ.get(name))
        for section, names in PARTS.items()
        for name in names
    )


def differing(found: dict, expected: dict, defaults: dict) -> set:
    """Names whose values differ; what is in neither `expected` nor `defaults` is not compared."""
    expected = {**defaults, **expected}
    return {name for name in found if name in expected and found[name] != expected[name]} - WITHOUT_EFFECT


def defaults(section: str, name: str) -> dict:
    """What fairseq fills in for a part of this name, without what it takes from other sections."""
    from fairseq import criterions, models, optim
    from fairseq.optim import lr_scheduler

    registry = {
        "model": models.MODEL_DATACLASS_REGISTRY,
        "criterion": criterions.CRITERION_DATACLASS_REGISTRY,
        "optimizer": optim.OPTIMIZER_DATACLASS_REGISTRY,
        "lr_scheduler": lr_scheduler.LR_SCHEDULER_DATACLASS_REGISTRY,
    }[section]
    structured = OmegaConf.structured(registry[name]())
    return {name: value for name, value in plain(structured, resolve=False).items() if not str(value).startswith("${")}


def plain(cfg, resolve: bool = True) -> dict:
    return lists_for_tuples(OmegaConf.to_container(cfg, resolve=resolve, enum_to_str=True))


def lists_for_tuples(value):
    if isinstance(value, dict):
        return {name: lists_for_tuples(item) for name, item in value.items()}
    return [lists_for_tuples(item) for item in value] if isinstance(value, list | tuple) else value

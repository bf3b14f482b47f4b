"""The model part of a configuration, as Hydra users and as users of fairseq's argparse commands get it."""

from pathlib import Path

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def from_yaml(experiment, setting, row, dataclass):
    GlobalHydra.instance().clear()
    # fairseq reads its own configuration the way of Hydra 1.1
    with initialize_config_dir(str(CONFIGS / experiment), version_base="1.1"):
        model = compose(setting, overrides=[f"row={row}"]).model
    return {**OmegaConf.to_container(OmegaConf.structured(dataclass), enum_to_str=True), **OmegaConf.to_container(model)}


def from_argparse(task, architecture, *arguments):
    parser = options.get_training_parser(default_task=task)
    args = options.parse_args_and_arch(parser, ["data-bin", "--arch", architecture, *arguments])
    return convert_namespace_to_omegaconf(args).model


def differences(yaml, named):
    return {k: (yaml[k], named[k]) for k in yaml if k != "_name" and yaml[k] != named[k]}

"""The named architectures are the Hydra configurations."""

from pathlib import Path

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from fwp_fairseq.models.language_model import LanguageModelConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "wikitext103"
ROWS = ("transformer", "linear", "delta", "performer", "performer_delta", "dpfp_sum", "dpfp_delta")


def from_yaml(setting, row):
    GlobalHydra.instance().clear()
    # fairseq reads its own configuration the way of Hydra 1.1
    with initialize_config_dir(str(CONFIGS), version_base="1.1"):
        model = compose(setting, overrides=[f"row={row}"]).model
    return {**OmegaConf.to_container(OmegaConf.structured(LanguageModelConfig), enum_to_str=True), **OmegaConf.to_container(model)}


def from_argparse(architecture, *arguments):
    parser = options.get_training_parser(default_task="fwp_language_modeling")
    args = options.parse_args_and_arch(parser, ["data-bin", "--arch", architecture, *arguments])
    return convert_namespace_to_omegaconf(args).model


def differences(yaml, named):
    return {k: (yaml[k], named[k]) for k in yaml if k != "_name" and yaml[k] != named[k]}


@pytest.mark.parametrize("setting", ["small", "medium", "mini"])
def test_named_architecture_equals_its_yaml(setting):
    name = "fwp_lm_mini" if setting == "mini" else f"fwp_lm_wt103_{setting}"
    for row in ROWS:
        assert differences(from_yaml(setting, row), from_argparse(f"{name}_{row}")) == {}
    assert differences(from_yaml(setting, "delta"), from_argparse(name)) == {}


def test_every_row_of_the_configs_has_a_name():
    # the Transformer-XL is another model, whose architectures have its own name
    assert {path.stem for path in (CONFIGS / "row").glob("*.yaml")} == {*ROWS, "transformer_xl"}


def test_options_go_before_the_name():
    model = from_argparse("fwp_lm_wt103_small", "--attention-normalization", "both", "--layers", "4")
    assert (model.attention_normalization, model.layers, model.d_model) == ("both", 4, 128)

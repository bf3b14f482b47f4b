"""The named architectures are the Hydra configurations."""

import pytest

from fwp_fairseq.models.language_model import LanguageModelConfig
from tests.models.configurations import CONFIGS, differences, from_argparse, from_yaml

ROWS = ("transformer", "linear", "delta", "performer", "performer_delta", "dpfp_sum", "dpfp_delta")


def yaml(setting, row):
    return from_yaml("wikitext103", setting, row, LanguageModelConfig)


def named(architecture, *arguments):
    return from_argparse("fwp_language_modeling", architecture, *arguments)


@pytest.mark.parametrize("setting", ["small", "medium", "mini"])
def test_named_architecture_equals_its_yaml(setting):
    name = "fwp_lm_mini" if setting == "mini" else f"fwp_lm_wt103_{setting}"
    for row in ROWS:
        assert differences(yaml(setting, row), named(f"{name}_{row}")) == {}
    assert differences(yaml(setting, "delta"), named(name)) == {}


def test_every_row_of_the_configs_has_a_name():
    # the Transformer-XL is another model, whose architectures have its own name
    assert {path.stem for path in (CONFIGS / "wikitext103" / "row").glob("*.yaml")} == {*ROWS, "transformer_xl"}


def test_options_go_before_the_name():
    model = named("fwp_lm_wt103_small", "--attention-normalization", "both", "--layers", "4")
    assert (model.attention_normalization, model.layers, model.d_model) == ("both", 4, 128)

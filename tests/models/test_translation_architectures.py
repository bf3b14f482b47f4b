"""The named architectures of the translation models are the Hydra configurations."""

import pytest

from fwp_fairseq.models.translation import TranslationModelConfig
from fwp_fairseq.models.translation_architectures import ROWS
from tests.models.configurations import CONFIGS, differences, from_argparse, from_yaml


def named(architecture, *arguments):
    return from_argparse("fwp_translation", architecture, *arguments)


@pytest.mark.parametrize("setting, row", [*(("base", row) for row in ROWS), ("mini", "dpfp_256")])
def test_named_architecture_equals_its_yaml(setting, row):
    yaml = from_yaml("wmt14_en_de", setting, row, TranslationModelConfig)
    assert differences(yaml, named(f"fwp_translation_{setting}_{row}")) == {}


def test_every_row_of_the_configs_has_a_name():
    assert {path.stem for path in (CONFIGS / "wmt14_en_de" / "row").glob("*.yaml")} == set(ROWS)


def test_options_go_before_the_name():
    model = named("fwp_translation_base_dpfp_256", "--nu", "4", "--cross-attention", "softmax")
    assert (model.nu, model.cross_attention, model.encoder_attention, model.d_model) == (4, "softmax", "linear", 512)

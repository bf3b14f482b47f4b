"""docs/extending.md is run as it stands: its file, then its commands at tiny size."""

import re
import sys
from pathlib import Path

import pytest
import torch

from fwp_fairseq.cli.eval_lm import main as evaluate
from fwp_fairseq.modules import FastWeightAttention, feature_map, register_feature_map, register_update_rule, update_rules

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "extending.md").read_text()


@pytest.fixture(scope="module")
def idea(tmp_path_factory):
    """The document's file in a folder of its own."""
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(code.splitlines()) < 40
    folder = tmp_path_factory.mktemp("user") / "my_idea"
    folder.mkdir()
    (folder / "__init__.py").write_text(code)
    yield folder
    feature_map.registered_maps.pop("softplus", None)
    update_rules._RULES.pop("decay", None)
    sys.modules.pop("my_idea", None)


@pytest.fixture(scope="module")
def trained(idea, train_lm, tmp_path_factory):
    [command] = re.findall(r"row=delta \\\n +(.*)\n", TEXT)
    options = [option for option in command.split() if not option.startswith("common.user_dir")]
    assert len(options) == 3
    folder = tmp_path_factory.mktemp("idea")
    assert train_lm(folder, *options, f"common.user_dir='{idea}'", "optimization.max_update=20") == 0
    return folder


def test_the_documents_commands_train_and_evaluate_the_idea(trained, lm_data, tmp_path):
    saved = torch.load(trained / "checkpoint_best.pt")["cfg"]
    assert (saved["model"]["feature_map"], saved["model"]["update_rule"]) == ("softplus", "decay")
    checkpoint = str(trained / "checkpoint_best.pt")
    assert evaluate([checkpoint, str(lm_data), "--stride", "16", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "runs/table_wikitext103/decay_softplus/mini/seed1.json").exists()


def test_the_rule_of_the_document_is_what_it_says(trained):
    torch.manual_seed(1)
    layer = FastWeightAttention(8, 2, "softplus", "decay", sum_normalization=False)
    x = torch.randn(1, 5, 8)
    out, state = layer(x)
    first, middle = layer(x[:, :3])
    rest, last = layer(x[:, 3:], middle)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), out)
    torch.testing.assert_close(last, state)
    q, k, v = layer.qkv_projection(x).chunk(3, dim=-1)
    beta = torch.sigmoid(layer.beta_projection(x))
    softplus = torch.nn.functional.softplus
    weights = torch.zeros(4, 4)
    for t in range(5):
        weights = beta[0, t, 1] * weights + torch.outer(softplus(k[0, t, 4:]), v[0, t, 4:])
    torch.testing.assert_close(state[0, 1], weights)


def test_a_registered_feature_map_works_in_the_synthetic_experiments(idea, trained, train, tmp_path):
    [as_written] = re.findall(r"\(`(curve=.*?)`\)", TEXT)
    options = ["task.num_keys=10", "optimization.max_update=100", f"task.results_dir='{tmp_path}'"]
    assert train("update_rule", *as_written.split(), *options, f"common.user_dir='{idea}'") == 0
    [record] = tmp_path.rglob("*.json")
    assert '"feature_map": "softplus"' in record.read_text() and "softplus_delta" in record.parts


def test_names_that_are_taken_or_unknown_are_refused():
    with pytest.raises(ValueError, match="feature_map.*elu already"):
        register_feature_map("elu")(torch.relu)
    with pytest.raises(ValueError, match="update_rule.*delta already"):
        register_update_rule("delta")(lambda *inputs: inputs)
    with pytest.raises(ValueError, match="update_rule: got 'decai', allowed are sum, delta"):
        FastWeightAttention(8, 2, update_rule="decai")


def test_a_rule_of_ones_own_has_no_attention_normalisation(trained):
    with pytest.raises(ValueError, match="attention_normalization: got 'output', the update rule decay takes none"):
        FastWeightAttention(8, 2, update_rule="decay", attention_normalization="output")

"""Which translation models count as runs at paper scale, and that the committed settings are the paper's."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from fwp_fairseq.reports import table_wmt14
from fwp_fairseq.tasks.translation_record import follows_the_paper

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "wmt14_en_de"
METRICS = {"beam": 4, "length_penalty": 0.6, "valid_sentences": 3000, "test_sentences": 3003}


def configuration(*overrides, setting="base"):
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.1"):
        return compose(setting, overrides=list(overrides))


def is_paper(*overrides, setting="base", status="finished", updates=100_000, **metrics):
    cfg = configuration(*overrides, setting=setting)
    return follows_the_paper(cfg, {"status": status, "updates": updates}, {**METRICS, **metrics})


@pytest.mark.parametrize("row", table_wmt14.TABLE.rows)
def test_the_committed_rows_are_the_papers(row):
    assert is_paper(f"row={row}")


def test_the_recipe_is_that_of_the_base_transformer():
    cfg = configuration()
    model, optimizer = cfg.model, cfg.optimizer
    assert (model.d_model, model.encoder_layers, model.decoder_layers, model.heads, model.d_ffn) == (512, 6, 6, 8, 2048)
    assert (cfg.criterion._name, cfg.criterion.label_smoothing) == ("label_smoothed_cross_entropy", 0.1)
    assert (optimizer._name, list(optimizer.adam_betas), optimizer.weight_decay) == ("torch_adam", [0.9, 0.98], 0.0)
    assert (cfg.lr_scheduler._name, cfg.lr_scheduler.warmup_updates) == ("inverse_sqrt", 4000)
    assert (cfg.dataset.max_tokens, list(cfg.optimization.update_freq), model.share_all_embeddings) == (25_000, [1], True)
    assert (model.encoder_attention, model.decoder_attention, model.cross_attention) == ("linear", "linear", "linear")
    phi = {row: configuration(f"row={row}").model for row in table_wmt14.TABLE.rows}
    assert [phi[f"performer_{size}"].m for size in (64, 256, 512)] == [32, 128, 256]
    assert [phi[f"dpfp_{size}"].nu for size in (256, 512)] == [2, 4]


def test_a_divided_batch_and_a_divergence_are_the_papers_too():
    divided = ["dataset.max_tokens=3125", "optimization.update_freq=[2]", "distributed_training.distributed_world_size=4"]
    assert is_paper(*divided)
    assert is_paper(status="diverged", updates=900)


@pytest.mark.parametrize(
    "overrides",
    [
        "optimizer._name=sgd", "optimizer.adam_betas=[0.9,0.5]", "optimizer.weight_decay=0.1", "optimizer.adam_eps=1e-3",
        "optimization.clip_norm=0.1", "common.fp16=true", "common.bf16=true", "criterion.label_smoothing=0.3",
        "model.dropout=0.3", "model.activation_dropout=0.3", "model.share_all_embeddings=false",
        "lr_scheduler.warmup_updates=40", "lr_scheduler.warmup_init_lr=7e-4", "dataset.max_tokens=2500",
        "optimization.update_freq=[1,8]", "dataset.validate_interval_updates=100000", "optimization.max_update=1000",
        "row=dpfp_256 model.nu=7", "row=dpfp_256 model.feature_map=elu model.nu=null", "row=transformer task.row=linear",
        "task.row=mine",
    ],
)  # fmt: skip
def test_any_other_setting_is_a_mini_run(overrides):
    assert not is_paper(*overrides.split())


@pytest.mark.parametrize("changes", [{"beam": 5}, {"length_penalty": 1.0}, {"test_sentences": 2737}, {"updates": 99_999}])
def test_other_searches_data_and_lengths_are_mini_runs(changes):
    assert not is_paper(**changes)


def test_the_small_settings_are_mini_runs():
    assert not is_paper(setting="mini") and not is_paper(setting="reordering")

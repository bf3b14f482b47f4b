"""Which language models count as runs at paper scale, and what a record keeps of their settings."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from fwp_fairseq.models.language_model import FastWeightLanguageModel, LanguageModelConfig
from fwp_fairseq.models.transformer_xl import TransformerXL, TransformerXLConfig
from fwp_fairseq.records import validate_record
from fwp_fairseq.tasks.language_model_record import language_model_record

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "wikitext103"
WIKITEXT103_SYMBOLS = range(267_737)


def record_of(*overrides, setting="small", dictionary=WIKITEXT103_SYMBOLS, stride=1, context="window", window=None, valid_ppl=36.0,
              test_tokens=245_568, **log):  # fmt: skip
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.1"):
        cfg = compose(setting, overrides=list(overrides))
    sizes = {name: cfg.model[name] for name in ("d_model", "layers", "heads", "d_ffn")}
    with torch.device("meta"):
        if cfg.model._name == "fwp_transformer_xl":
            model = TransformerXL(TransformerXLConfig(mem_len=cfg.model.mem_len, **sizes), dictionary)
        else:
            model = FastWeightLanguageModel(LanguageModelConfig(**sizes), dictionary)
    log = {
        "status": "finished", "reason": None, "updates": cfg.optimization.max_update, "tokens": 10, "wall_seconds": 5.0,
        "peak_memory_mb": 100.0, "device": "cpu", "curves": {"updates": [4000, 8000], "train_loss": [4.0, 3.9], "valid_loss": [3.6, 3.7]},
        **log,
    }  # fmt: skip
    window = window or cfg.task.tokens_per_sample_eval or cfg.task.tokens_per_sample
    metrics = {"context": context, "stride": stride, "window": window, "valid_ppl": valid_ppl, "test_ppl": 37.0}
    metrics |= {"valid_tokens": 217_645, "test_tokens": test_tokens}
    metrics = {} if log["status"] == "diverged" else metrics
    record = language_model_record(cfg, model, dictionary, log, metrics, {"test_position": [64, 128]})
    validate_record(record)
    return record


@pytest.mark.parametrize("setting", ["small", "medium"])
def test_the_committed_settings_are_the_papers(setting):
    record = record_of(setting=setting)
    assert (record["scale"], record["cell"], record["row"]) == ("paper", setting, "delta")
    assert (record["metrics"]["best_validation_loss"], record["metrics"]["best_update"]) == (3.6, 4000)
    assert record["peak_memory_mb"] == 100.0
    assert "data" not in record["config"]["task"]  # a path of this machine


def test_the_ablation_and_a_divided_batch_are_the_papers_too():
    ablation = record_of("row=delta", "+ablation=no_positions_both", setting="medium")
    assert (ablation["scale"], ablation["experiment"]) == ("paper", "table_wikitext103_ablation")
    assert ablation["row"] == "no_positions_both"
    divided = ["dataset.batch_size=12", "optimization.update_freq=[2]", "distributed_training.distributed_world_size=4"]
    assert record_of(*divided)["scale"] == "paper"


@pytest.mark.parametrize(
    "override",
    [
        "optimization.lr=[0.0005]", "optimization.max_update=1000", "dataset.batch_size=48", "model.layers=8",
        "task.order=blocks", "task.tokens_per_sample=128", "lr_scheduler.warmup_updates=0", "model.dropout=0.2",
        "optimizer._name=sgd", "optimizer.adam_betas=[0.9,0.98]", "optimizer.weight_decay=0.1", "common.bf16=true",
        "common.fp16=true", "+lr_scheduler.min_lr=1e-4", "model.update_rule=sum", "model.attention=softmax",
        "row=linear task.row=delta", "task.row=mine", "+dataset.max_valid_steps=1", "dataset.valid_subset=train",
        "task.tokens_per_sample_eval=64", "row=dpfp_delta model.nu=3", "task.divergence_span=1",
        "optimization.update_freq=[1,8]",
    ],
)  # fmt: skip
def test_any_other_setting_is_a_mini_run(override):
    assert record_of(*override.split())["scale"] == "mini"


def test_other_words_strides_and_unfinished_runs_are_mini_runs():
    assert record_of(dictionary=range(2_001))["scale"] == "mini"
    assert record_of(stride=16)["scale"] == "mini"
    assert record_of(window=8)["scale"] == "mini"
    assert record_of(test_tokens=5)["scale"] == "mini"
    assert record_of(updates=400_000)["scale"] == "mini"
    assert record_of(setting="mini", dictionary=range(2_001))["scale"] == "mini"


def test_divergence_in_training_and_in_the_evaluation_is_the_outcome():
    trained = record_of(status="diverged", reason="the loss is nan", updates=900)
    assert (trained["status"], trained["scale"], trained["metrics"]["reason"]) == ("diverged", "paper", "the loss is nan")
    evaluated = record_of(valid_ppl=float("nan"))
    assert (evaluated["status"], evaluated["metrics"]["valid_ppl"]) == ("diverged", None)


def transformer_xl(size, *overrides, **changes):
    parts = ["recipe=authors", "row=transformer_xl", f"+unbounded/medium=transformer_xl_{size}"]
    return record_of(*parts, *overrides, setting="medium", **changes)


@pytest.mark.parametrize("row", ["delta", "linear", "dpfp_delta"])
def test_unbounded_fast_weights_are_the_papers_when_read_as_one_stream(row):
    parts = [f"row={row}", "+unbounded=fast_weights"]
    record = record_of(*parts, setting="medium", context="stream", stride=384)
    assert (record["scale"], record["experiment"], record["row"]) == ("paper", "table_wikitext103_unbounded", row)
    assert record["curves"]["test_position"] == [64, 128]
    assert record_of(*parts, setting="medium")["scale"] == "mini"
    assert record_of(*parts, "model.positional_encoding=true", setting="medium", context="stream")["scale"] == "mini"


@pytest.mark.parametrize("size, state", [("1x", 131_072), ("8x", 1_048_576), ("16x", 2_097_152), ("48x", 6_291_456)])
def test_every_transformer_xl_is_the_papers_at_its_state_size(size, state):
    record = transformer_xl(size, context="stream")
    assert (record["scale"], record["row"], record["state_size"]) == ("paper", f"transformer_xl_{size}", state)
    assert transformer_xl(size, "model.mem_len=9", context="stream")["scale"] == "mini"
    assert transformer_xl(size)["scale"] == "mini"

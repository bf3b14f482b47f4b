"""fwp-eval-lm on a tiny trained model: numbers, records, and what it refuses."""

import json
import math
import shutil

import pytest

from fwp_fairseq.cli.eval_lm import main
from fwp_fairseq.records import read_record


def run(*arguments):
    return main([str(argument) for argument in arguments])


def copy_of(trained_lm, folder):
    """A folder of the same run that may be changed: the best checkpoint and the training log."""
    folder.mkdir()
    for name in ("checkpoint_best.pt", "training.json"):
        shutil.copy(trained_lm.save_dir / name, folder / name)
    return folder


def test_perplexity_of_a_word_level_text(trained_lm, tmp_path, capsys):
    assert run(trained_lm.checkpoint, trained_lm.data, "--split", "valid", "--split", "test", "--results", tmp_path) == 0
    record = read_record(tmp_path / "runs/table_wikitext103/delta/mini/seed1.json")
    metrics = record["metrics"]
    assert (metrics["valid_tokens"], metrics["test_tokens"]) == (209, 149)
    assert metrics["test_ppl"] == pytest.approx(math.exp(metrics["test_loss"]))
    # the model was trained on segments, where most tokens have less context
    assert metrics["valid_loss"] == pytest.approx(trained_lm.log["curves"]["valid_loss"][-1], abs=0.15)
    assert not any("bits" in name for name in metrics)
    assert (metrics["stride"], metrics["window"], metrics["best_update"]) == (1, 16, 60)
    assert (record["status"], record["scale"], record["updates"]) == ("finished", "mini", 60)
    assert record["curves"] == trained_lm.log["curves"]
    assert record["state_size"] == 2 * 2 * 8 * 8
    assert str(trained_lm.data) not in json.dumps(record)
    assert f"perplexity {metrics['test_ppl']:.3f}" in capsys.readouterr().out


def test_subwords_get_bits_a_byte_and_perplexity_a_word(trained_lm, tmp_path):
    data = tmp_path / "subwords"
    shutil.copytree(trained_lm.data, data)
    stats = json.loads((data / "text_stats.json").read_text())
    stats["test"].update(words=60, bytes=400)
    (data / "text_stats.json").write_text(json.dumps(stats))
    assert run(trained_lm.checkpoint, data, "--stride", 8, "--results", tmp_path) == 0
    metrics = read_record(tmp_path / "runs/table_wikitext103/delta/mini/seed1.json")["metrics"]
    bits = metrics["test_loss"] * 149 / math.log(2)
    assert metrics["test_bits_per_byte"] == pytest.approx(bits / 400)
    assert metrics["test_bits_per_word"] == pytest.approx(bits / (60 + 15))
    assert metrics["test_word_ppl"] == pytest.approx(2 ** metrics["test_bits_per_word"])


def test_a_diverged_run_gets_its_record_without_an_evaluation(trained_lm, tmp_path):
    folder = copy_of(trained_lm, tmp_path / "run")
    log = {**trained_lm.log, "status": "diverged", "reason": "the loss is nan", "updates": 17}
    (folder / "training.json").write_text(json.dumps(log))
    assert run(folder / "checkpoint_best.pt", trained_lm.data, "--results", tmp_path) == 0
    record = read_record(tmp_path / "runs/table_wikitext103/delta/mini/seed1.json")
    assert (record["status"], record["updates"]) == ("diverged", 17)
    assert record["metrics"]["reason"] == "the loss is nan" and "test_ppl" not in record["metrics"]


def truncate(folder):
    path = folder / "checkpoint_best.pt"
    path.write_bytes(path.read_bytes()[:5000])


def empty(folder):
    (folder / "checkpoint_best.pt").write_bytes(b"")


@pytest.mark.parametrize(
    "damage, arguments, words",
    [
        (lambda folder: (folder / "checkpoint_best.pt").unlink(), [], ["checkpoint_best.pt", "no such file"]),
        (truncate, [], ["checkpoint_best.pt", "cut off"]),
        (empty, [], ["checkpoint_best.pt", "cut off"]),
        (lambda folder: (folder / "training.json").unlink(), [], ["training.json"]),
        (None, ["--stride", 0], ["stride", "got 0"]),
        (None, ["--stride", 17], ["stride", "window of 16", "got 17"]),
        (None, ["--window", 150], ["window", "149", "got 150"]),
        (None, ["--split", "dev"], ["dev.bin", "data_prep"]),
    ],
)
def test_what_does_not_fit_is_one_clear_error(trained_lm, tmp_path, capsys, damage, arguments, words):
    folder = copy_of(trained_lm, tmp_path / "run")
    if damage is not None:
        damage(folder)
    assert run(folder / "checkpoint_best.pt", trained_lm.data, "--results", tmp_path / "results", *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("fwp-eval-lm: error: ") and "Traceback" not in error
    assert all(word in error for word in words), error
    assert list((tmp_path / "results").rglob("*.json")) == []


def test_data_that_is_not_that_of_the_training_is_refused(trained_lm, tmp_path, capsys):
    assert run(trained_lm.checkpoint, tmp_path) == 1
    assert "no dict.txt" in capsys.readouterr().err
    data = tmp_path / "other"
    shutil.copytree(trained_lm.data, data)
    words = (data / "dict.txt").read_text()
    (data / "dict.txt").write_text(words.replace("w7 ", "other "))  # as many words
    assert run(trained_lm.checkpoint, data) == 1
    assert "not the dictionary" in capsys.readouterr().err
    (data / "dict.txt").write_text(words)
    (data / "text_stats.json").write_text(json.dumps({"test": {"tokens": 99}}))
    assert run(trained_lm.checkpoint, data) == 1
    assert "test lacks words, lines, bytes" in capsys.readouterr().err
    (data / "text_stats.json").write_text(json.dumps({"test": {"tokens": 99, "words": 1, "lines": 1, "bytes": 1}}))
    assert run(trained_lm.checkpoint, data) == 1
    assert "150 tokens" in capsys.readouterr().err


def test_a_record_is_replaced_only_by_one_with_the_same_numbers(trained_lm, tmp_path, capsys):
    assert run(trained_lm.checkpoint, trained_lm.data, "--results", tmp_path) == 0  # valid and test
    path = tmp_path / "runs/table_wikitext103/delta/mini/seed1.json"
    assert {"valid_ppl", "test_ppl"} <= read_record(path)["metrics"].keys()
    kept = path.read_bytes()
    for arguments, words in (
        (["--split", "test"], "numbers of valid too, which would be lost: evaluate --split valid --split test"),
        (["--stride", "4"], "evaluated with stride 1, this would be 4"),
        (["--window", "8"], "evaluated with window 16, this would be 8"),
    ):
        assert run(trained_lm.checkpoint, trained_lm.data, "--results", tmp_path, *arguments) == 1
        assert words in capsys.readouterr().err and path.read_bytes() == kept
    assert run(trained_lm.checkpoint, trained_lm.data, "--results", tmp_path) == 0


def test_a_training_that_still_runs_has_no_record(trained_lm, tmp_path, capsys):
    folder = copy_of(trained_lm, tmp_path / "run")
    (folder / "training.json").write_text(json.dumps({**trained_lm.log, "status": "running", "updates": 40}))
    assert run(folder / "checkpoint_best.pt", trained_lm.data, "--results", tmp_path / "results") == 1
    assert "the training has not ended (update 40)" in capsys.readouterr().err
    assert not list((tmp_path / "results").rglob("*.json"))
    assert run(folder / "checkpoint_best.pt", trained_lm.data) == 0


@pytest.mark.parametrize("option", ["--window", "--batch-size"])
@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_numbers_that_are_none_are_named(trained_lm, capsys, option, value):
    with pytest.raises(SystemExit) as stop:
        run(trained_lm.checkpoint, trained_lm.data, f"{option}={value}")
    assert stop.value.code == 2 and f"{option}: expected a whole number >= 1, got '{value}'" in capsys.readouterr().err


# One stream


def test_the_segment_of_evaluation_may_be_another(train_lm, lm_data, tmp_path):
    """Text of which a Transformer-XL without memory sees a segment alone."""
    model = ["recipe=authors", "row=transformer_xl", "+unbounded/mini=transformer_xl_1x", "model.mem_len=0"]
    for name, segment in (("short", 8), ("long", "null")):
        options = ["optimization.max_update=20", "task.tokens_per_sample=16", f"task.tokens_per_sample_eval={segment}"]
        assert train_lm(tmp_path / name, *model, *options, "task.row=transformer_xl") == 0
        assert run(tmp_path / name / "checkpoint_last.pt", lm_data, "--results", tmp_path / name) == 0
    short, long = (json.loads((tmp_path / name / "training.json").read_text())["curves"] for name in ("short", "long"))
    assert short["train_loss"] == long["train_loss"] and short["valid_loss"] != long["valid_loss"]
    path = "runs/table_wikitext103_unbounded/transformer_xl/mini/seed1.json"
    assert [read_record(tmp_path / name / path)["metrics"]["window"] for name in ("short", "long")] == [8, 16]


def test_a_streaming_model_reads_the_split_in_one_pass(streaming_lm, tmp_path):
    checkpoint = streaming_lm.save_dir / "checkpoint_last.pt"
    assert run(checkpoint, streaming_lm.data, "--split", "valid", "--split", "test", "--results", tmp_path) == 0
    record = read_record(tmp_path / "runs/table_wikitext103/delta/mini/seed1.json")
    metrics, curves = record["metrics"], record["curves"]
    assert (metrics["context"], metrics["window"], metrics["valid_tokens"]) == ("stream", 16, 209)
    # training validated in one row too
    assert metrics["valid_loss"] == pytest.approx(streaming_lm.log["curves"]["valid_loss"][-1], abs=1e-4)
    spans = [end - start for start, end in zip([0, *curves["valid_position"]], curves["valid_position"])]
    assert curves["valid_position"][0] == 64 and sum(spans) == 209
    total = sum(span * loss for span, loss in zip(spans, curves["valid_position_loss"]))
    assert total / 209 == pytest.approx(metrics["valid_loss"])


def test_the_length_of_a_segment_changes_nothing_for_fast_weights(streaming_lm, tmp_path, capsys):
    losses = []
    for segment in (16, 7, 149):
        results = tmp_path / str(segment)
        assert run(streaming_lm.checkpoint, streaming_lm.data, "--window", segment, "--results", results) == 0
        losses.append(read_record(results / "runs/table_wikitext103/delta/mini/seed1.json")["metrics"]["test_loss"])
    assert losses[1:] == pytest.approx(losses[:1] * 2, abs=1e-4)
    assert run(streaming_lm.checkpoint, streaming_lm.data, "--context", "window") == 0  # cut on purpose
    assert "stride 1" in capsys.readouterr().out


def test_streams_are_for_models_trained_on_them(trained_lm, streaming_lm, capsys):
    assert run(trained_lm.checkpoint, trained_lm.data, "--context", "stream") == 1
    assert "without task.carry_state" in capsys.readouterr().err
    assert run(streaming_lm.checkpoint, streaming_lm.data, "--stride", 1) == 1
    assert "--stride 1" in capsys.readouterr().err
    assert run(streaming_lm.checkpoint, streaming_lm.data, "--window", 150) == 1
    assert "window" in capsys.readouterr().err

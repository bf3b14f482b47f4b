"""fwp-generate: what it prints for words and subwords, with a carried state and without, and what it refuses."""

import collections
import io
import shutil

import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary

from fwp_fairseq.cli.generate import main
from fwp_fairseq.cli.trained_model import load_language_model
from fwp_fairseq.generation import Sampler, carries_its_state, generate
from fwp_fairseq.models.language_model import FastWeightLanguageModel, LanguageModelConfig
from fwp_fairseq.models.transformer_xl import TransformerXL, TransformerXLConfig
from fwp_fairseq.prompt_text import TextError, open_text


def run(trained, *arguments):
    return main([str(argument) for argument in (trained.checkpoint, trained.data, *arguments)])


def out_of(capsys, trained, *arguments):
    capsys.readouterr()
    assert run(trained, *arguments) == 0
    return capsys.readouterr().out


# The command


@pytest.mark.parametrize("model, carries", [("streaming_lm", True), ("trained_lm", False)])
def test_at_temperature_0_each_word_is_the_likeliest_after_those_before(model, carries, request, capsys):
    trained = request.getfixturevalue(model)
    out = out_of(capsys, trained, "--prompt", "w3 w22\nw9", "--temperature", 0, "--length", 40)
    _, model, dictionary = load_language_model(trained.checkpoint, trained.data)
    assert carries_its_state(model) == carries
    symbols = [2, *open_text(trained.data, dictionary).encode("w3 w22\nw9")]
    for _ in range(40):
        seen = symbols if carries else symbols[-16:]
        with torch.no_grad():
            log_probs = model.get_normalized_probs(model.eval()(torch.tensor([seen])), log_probs=True)[0, -1]
        log_probs[[0, 1, 3]] = -torch.inf
        symbols.append(int(log_probs.argmax()))
    words = [dictionary[symbol].replace("</s>", "\n") for symbol in symbols[1:]]
    assert out == "\n".join(" ".join(line.split()) for line in " ".join(words).split(" \n")) + "\n" * (symbols[-1] != 2)


def test_the_seed_decides_and_samples_differ(streaming_lm, capsys):
    options = ["--length", 30, "--samples", 2]
    first, again, other = (out_of(capsys, streaming_lm, *options, "--seed", seed) for seed in (5, 5, 6))
    assert first == again != other
    _, one, two = first.replace("=== sample 2 of 2\n", "=== sample 1 of 2\n").split("=== sample 1 of 2\n")
    assert one != two
    for sample in (one, two):
        assert len(sample.split()) + sample.count("\n") in (30, 31)  # a line break at the end is printed in any case


def test_text_comes_word_by_word(streaming_lm, monkeypatch):
    class Flushes(io.StringIO):
        seen = []

        def flush(self):
            self.seen.append(self.getvalue())

    monkeypatch.setattr("sys.stdout", Flushes())
    assert run(streaming_lm, "--length", 5, "--prompt", "w1") == 0
    assert len(set(Flushes.seen)) >= 5


def test_a_prompt_from_a_file_is_the_same_but_for_its_last_line_break(streaming_lm, tmp_path, capsys):
    (tmp_path / "prompt").write_text("w1 w2\nw3\n")
    from_file = out_of(capsys, streaming_lm, "--prompt-file", tmp_path / "prompt", "--length", 9)
    assert from_file == out_of(capsys, streaming_lm, "--prompt", "w1 w2\nw3", "--length", 9)
    assert from_file.startswith("w1 w2\nw3")


def test_unknown_words_are_read_when_allowed_but_never_written(streaming_lm, capsys):
    out = out_of(capsys, streaming_lm, "--prompt", "w1 zebra", "--allow-unknown", "--length", 200, "--temperature", 3)
    assert out.startswith("w1 <unk> ") and out.count("<unk>") == 1
    assert "<pad>" not in out and "<s>" not in out and "</s>" not in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--prompt", ""], ["prompt is empty"]),
        (["--prompt", " \n"], ["prompt is empty"]),
        (["--prompt", "w1 house zebra house"], ["not in dict.txt: house zebra;", "--allow-unknown"]),
        (["--prompt", "w1 <pad> </s>"], ["not in dict.txt: <pad> </s>;"]),
        (["--prompt-file", "none.txt"], ["none.txt", "No such file"]),
    ],
)
def test_a_prompt_that_cannot_be_read_is_one_clear_error(streaming_lm, capsys, arguments, words):
    assert run(streaming_lm, *arguments) == 1
    error = capsys.readouterr().err
    assert error.count("fwp-generate: error: ") == 1 and "Traceback" not in error
    assert all(word in error for word in words), error


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--length", "-3"], ["--length", "whole number >= 1", "'-3'"]),
        (["--samples", "0"], ["--samples", "whole number >= 1"]),
        (["--temperature", "-0.5"], ["temperature", ">= 0", "-0.5"]),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--top-p", "0"], ["top_p", "above 0", "got 0"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--top-k", "0"], ["--top-k", "'0'"]),
        (["--seed", "-1"], ["seed", "-1"]),
        (["--prompt", "w1", "--prompt-file", "x"], ["--prompt-file", "not allowed with"]),
    ],
)
def test_wrong_arguments_are_named(tmp_path, capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        main(["no checkpoint", "no data", *arguments])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error


def test_other_checkpoints_and_data_are_refused(trained_lm, tmp_path, capsys):
    assert main([str(tmp_path / "none.pt"), str(trained_lm.data)]) == 1
    assert "none.pt: no such file" in capsys.readouterr().err
    assert main([str(trained_lm.checkpoint), str(tmp_path)]) == 1
    assert "no dict.txt" in capsys.readouterr().err


def test_ctrl_c_and_a_closed_pipe_end_it_quietly(streaming_lm, monkeypatch, capfd):
    for error, status in ((KeyboardInterrupt, 130), (BrokenPipeError, 141)):

        def interrupted(*arguments, error=error):
            raise error

        monkeypatch.setattr("fwp_fairseq.cli.generate.load_language_model", interrupted)
        assert run(streaming_lm) == status
        assert "Traceback" not in capfd.readouterr().err


# Subwords


@pytest.fixture(scope="module")
def subword_data(tmp_path_factory):
    """A data-bin folder with the dictionary of a small subword model, and the model beside it."""
    folder = tmp_path_factory.mktemp("subwords")
    lines = ["returns the mean of the array", "the array is returned", "means and arrays"] * 20
    (folder / "pieces").mkdir()
    model = folder / "pieces/sentencepiece.model"
    with model.open("wb") as writer:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=writer, model_type="bpe", vocab_size=40, bos_id=-1, eos_id=-1,
            minloglevel=2,
        )  # fmt: skip
    processor, dictionary = sentencepiece.SentencePieceProcessor(model_file=str(model)), Dictionary()
    for line in lines:
        for piece in processor.encode(line, out_type=str):
            dictionary.add_symbol(piece)
    (folder / "data-bin").mkdir()
    dictionary.save(str(folder / "data-bin/dict.txt"))
    return folder / "data-bin", dictionary


def test_pieces_are_joined_to_words(subword_data):
    text = open_text(*subword_data)
    decoder = text.decoder()
    symbols = text.encode("the means\nreturned  arrays")
    assert len(symbols) > 6 and symbols.count(2) == 1
    assert "".join(map(decoder.add, symbols)) == "the means\nreturned arrays"


def test_pieces_that_were_never_seen_are_named(subword_data):
    with pytest.raises(TextError, match="pieces of the prompt that are not in dict.txt: .*☃"):
        open_text(*subword_data).encode("the ☃")


def test_a_missing_subword_model_is_named(subword_data, tmp_path):
    data, dictionary = subword_data
    shutil.copytree(data, tmp_path / "data-bin")
    with pytest.raises(TextError, match="sentencepiece.model"):
        open_text(tmp_path / "data-bin", dictionary)
    (tmp_path / "data-bin/sentencepiece.model").write_bytes(b"none")
    with pytest.raises(TextError, match="cannot be read"):
        open_text(tmp_path / "data-bin", dictionary)
    shutil.copy(data.parent / "pieces/sentencepiece.model", tmp_path / "data-bin")
    assert open_text(tmp_path / "data-bin", dictionary).encode("the mean") == open_text(*subword_data).encode("the mean")


# Drawing


def drawn(log_probs, **options):
    sampler = Sampler(**options)
    counts = collections.Counter(sampler(log_probs.clone()) for _ in range(1500))
    return [counts[symbol] / 1500 for symbol in range(len(log_probs))]


def test_draws_have_the_probabilities_that_were_asked_for():
    p = torch.tensor([0.05, 0.4, 0.25, 0.3])
    for options, expected in (
        ({}, [0.05, 0.4, 0.25, 0.3]),
        ({"temperature": 0.5}, (p**2 / (p**2).sum()).tolist()),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.71}, [0, 0.4 / 0.95, 0.25 / 0.95, 0.3 / 0.95]),
        ({"top_p": 1e-9}, [0, 1, 0, 0]),
        ({"top_k": 3, "top_p": 0.4}, [0, 1, 0, 0]),
        ({"temperature": 1e-6}, [0, 1, 0, 0]),
    ):
        found = drawn(p.log(), **options)
        assert found == pytest.approx(expected, abs=0.05), options
        assert [x == 0 for x in found] == [x < 1e-6 for x in expected], options


def test_probabilities_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="diverged"):
        Sampler()(torch.tensor([0.0, float("nan")]))


# The state


def tiny(model, config, **parts):
    dictionary = Dictionary()
    for word in "abcdefghijkl":
        dictionary.add_symbol(word)
    torch.manual_seed(1)
    model = model(config(d_model=16, layers=2, heads=2, d_ffn=24, **parts), dictionary)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("prompt_length", [1, 5, 16])
def test_every_symbol_is_read_once_where_the_state_is_carried(prompt_length):
    for model in (
        tiny(FastWeightLanguageModel, LanguageModelConfig, positional_encoding=False),
        tiny(TransformerXL, TransformerXLConfig, mem_len=8),
    ):
        lengths = []
        model.decoder.register_forward_pre_hook(lambda _, args, kw: lengths.append(args[0].shape[1]), with_kwargs=True)
        symbols = list(generate(model, [2] * prompt_length, 20, 6, Sampler()))
        assert len(symbols) == 20 and not {0, 1, 3} & set(symbols)
        assert sum(lengths) == prompt_length + 19 and max(lengths) <= 6


def test_softmax_reads_its_last_symbols_anew_with_positions_or_without():
    for positions in (True, False):
        model = tiny(FastWeightLanguageModel, LanguageModelConfig, attention="softmax", positional_encoding=positions)
        lengths = []
        model.decoder.register_forward_pre_hook(lambda _, args, kw: lengths.append(args[0].shape[1]), with_kwargs=True)
        assert not carries_its_state(model)
        list(generate(model, [2, 5], 20, 6, Sampler()))
        assert lengths == [2, 3, 4, 5] + [6] * 16

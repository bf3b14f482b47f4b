"""fairseq-interactive and fairseq-generate on the language models, in this process."""

import io
import sys

import pytest

from fwp_fairseq.data.token_stream import load_tokens
from fwp_fairseq.tasks.language_modeling import load_dictionary


@pytest.fixture
def fairseq_command(monkeypatch, capsys):
    """`run(command, checkpoint, data, *options, typed="")` -> what the command of fairseq printed."""

    def run(name, trained, *options, typed=""):
        from fairseq_cli import generate, interactive

        command = {"fairseq-interactive": interactive, "fairseq-generate": generate}[name]
        fixed = ["--user-dir", "fwp_fairseq", "--task", "fwp_language_modeling", "--path", str(trained.checkpoint)]
        monkeypatch.setattr(sys, "argv", [name, str(trained.data), *fixed, *options])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        capsys.readouterr()
        command.cli_main()
        return capsys.readouterr().out

    return run


def hypotheses(out):
    """{number of the prompt: [text, ...]}"""
    found = {}
    for line in out.splitlines():
        if line.startswith("H-"):
            number, _, text = line[2:].split("\t")
            found.setdefault(int(number), []).append(text)
    return found


@pytest.mark.parametrize("model", ["trained_lm", "streaming_lm"])
def test_interactive_goes_on_from_each_prompt(model, request, fairseq_command):
    trained, beams = request.getfixturevalue(model), ["--max-len-b", "20", "--beam", "2", "--nbest", "2"]
    prompts = ["w3", "w8 w1 w20 w5", "w11 w4"]
    typed = "".join(f"{prompt}\n" for prompt in prompts)
    together = hypotheses(fairseq_command("fairseq-interactive", trained, *beams, "--buffer-size", "3",
                                          "--batch-size", "3", typed=typed))  # fmt: skip
    one_by_one = hypotheses(fairseq_command("fairseq-interactive", trained, *beams, typed=typed))
    assert together == one_by_one
    for number, prompt in enumerate(prompts):
        assert len(together[number]) == 2
        assert all(text == prompt or text.startswith(prompt + " ") for text in together[number])


def test_interactive_samples_by_its_seed(streaming_lm, fairseq_command):
    options = ["--sampling", "--sampling-topp", "0.9", "--temperature", "1.3", "--beam", "3", "--nbest", "3"]
    first, again, other = (
        fairseq_command("fairseq-interactive", streaming_lm, *options, "--seed", seed, typed="w3 w22\n")
        for seed in ("5", "5", "6")
    )
    assert hypotheses(first) == hypotheses(again) != hypotheses(other)
    assert len(set(hypotheses(first)[0])) > 1


def test_interactive_names_words_that_are_unknown_and_begins_a_text_without_a_prompt(
    streaming_lm, fairseq_command, caplog
):
    out = fairseq_command("fairseq-interactive", streaming_lm, "--max-len-b", "9", typed="w3 house w4 zebra\n\n")
    assert "read as <unk>, not in dict.txt: house zebra" in caplog.messages
    assert hypotheses(out)[0][0].startswith("w3 <unk> w4 <unk>")
    assert hypotheses(out)[1][0].startswith("w")


def test_generate_goes_on_from_the_beginnings_of_a_split(streaming_lm, fairseq_command):
    options = ["--gen-subset", "test", "--prefix-size", "3", "--batch-size", "2", "--max-len-b", "12"]
    out = fairseq_command("fairseq-generate", streaming_lm, *options, "--tokens-per-sample", "16")
    dictionary = load_dictionary(streaming_lm.data)
    words = [dictionary[symbol] for symbol in load_tokens(str(streaming_lm.data), "test", dictionary)]
    found = hypotheses(out)
    assert sorted(found) == list(range(10))  # 149 predictions: two rows of five segments of 16
    for number, (text, *_) in found.items():
        segment, row = divmod(number, 2)
        start = (1, 76)[row] + 16 * segment
        prefix = " ".join(words[start : start + 3]).split("</s>")[0].strip()
        assert f"{text} ".startswith(f"{prefix} ".lstrip())

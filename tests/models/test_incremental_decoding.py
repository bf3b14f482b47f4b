"""Decoding token by token against reading the whole text: every row of the tables, fairseq's generator with beams and
prompts of unequal lengths, and the size of what is kept."""

from pathlib import Path

import pytest
import torch
import yaml
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator

from fwp_fairseq.models.language_model import FastWeightLanguageModel, LanguageModelConfig
from fwp_fairseq.models.tempered import TemperedEnsemble
from fwp_fairseq.models.transformer_xl import TransformerXL, TransformerXLConfig

ROWS = {
    path.stem: yaml.safe_load(path.read_text())["model"]
    for path in sorted((Path(__file__).parents[2] / "configs/wikitext103/row").glob("*.yaml"))
}
CASES = {
    **{row: {} for row in ROWS},
    "delta/output": {"attention_normalization": "output"},
    "delta/both": {"attention_normalization": "both"},
    "dpfp_delta/both": {"attention_normalization": "both"},
    "linear/none": {"attention_normalization": "none"},
    "transformer_xl/clamped": {"clamp_len_eval": 3},
}
DICTIONARY = Dictionary()
for number in range(12):
    DICTIONARY.add_symbol(f"w{number}")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def model_of(case, **parts):
    """A small model in float64 whose weights are large enough to make symbols matter."""
    parts = {**ROWS[case.split("/")[0]], **CASES[case], "d_model": 16, "layers": 2, "heads": 2, "d_ffn": 24, **parts}
    name = parts.pop("_name", "fwp_lm")
    if name == "fwp_transformer_xl":
        model = TransformerXL(TransformerXLConfig(**parts), DICTIONARY)
    else:
        model = FastWeightLanguageModel(LanguageModelConfig(**{"positional_encoding": False, **parts}), DICTIONARY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


def text(batch, length):
    return torch.randint(2, len(DICTIONARY), (batch, length))


def log_probs(model, out):
    return model.get_normalized_probs(out, log_probs=True)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_token_by_token_equals_the_whole_text(case):
    model, tokens = model_of(case), text(3, 20)
    whole = log_probs(model, model(tokens))
    incremental, parts = {}, []
    for end in (5, *range(6, 21)):  # a prompt at once, then one by one
        parts.append(log_probs(model, model.decoder(tokens[:, :end], incremental_state=incremental)))
    assert [part.shape[1] for part in parts] == [5] + [1] * 15
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)


def kept_numbers(incremental):
    """Numbers in an incremental state, and how many symbols it has read."""
    (kept,) = incremental.values()
    tensors = [x for entry in kept["state"] for x in (entry if isinstance(entry, tuple) else (entry,))]
    return sum(x.numel() for x in tensors), {x.dtype for x in tensors}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_only_the_cache_of_softmax_grows(case):
    model, tokens, incremental, sizes = model_of(case, **({"mem_len": 8} if "xl" in case else {})), text(2, 60), {}, []
    for end in range(1, 61):
        model.decoder(tokens[:, :end], incremental_state=incremental)
        sizes.append(kept_numbers(incremental)[0])
    if case == "transformer":
        assert sizes == [2 * model.state_size(end) for end in range(1, 61)]
    elif "xl" in case:
        assert sizes == [2 * min(end, 8) * 16 * 2 for end in range(1, 61)]
    else:
        assert sizes == [2 * model.state_size(60)] * 60


@torch.no_grad()
@pytest.mark.parametrize("case", ["delta", "delta/both", "linear", "dpfp_delta"])
def test_half_types_keep_their_state_in_float32(case):
    model, tokens, incremental = model_of(case).bfloat16(), text(2, 30), {}
    for end in range(1, 31):
        out = model.decoder(tokens[:, :end], incremental_state=incremental)
    assert kept_numbers(incremental)[1] == {torch.float32}
    last = log_probs(model, out)[:, 0].exp().double()
    torch.testing.assert_close(last, log_probs(model.double(), model(tokens))[:, -1].exp(), rtol=0, atol=0.05)


# fairseq's generator

PROMPTS = ([5], [9, 4, 7, 12], [6, 6, 13, 4, 8, 10, 5])


def search(model, prompts, incremental=True, **options):
    """[[(symbols, score of each)] of every hypothesis] of every prompt, by fairseq's beam search."""
    generator = SequenceGenerator(TemperedEnsemble([model]), DICTIONARY, max_len_b=14, **{"beam_size": 3, **options})
    generator.model.has_incremental = incremental
    longest = max(map(len, prompts))
    prefix = torch.tensor([prompt + [DICTIONARY.pad()] * (longest - len(prompt)) for prompt in prompts])
    sample = {"net_input": {"src_tokens": prefix, "src_lengths": torch.tensor([len(prompt) for prompt in prompts])}}
    found = generator.generate([model], sample, prefix_tokens=prefix)
    return [[(hypothesis["tokens"].tolist(), hypothesis["positional_scores"]) for hypothesis in each] for each in found]


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [symbols for symbols, _ in ours] == [symbols for symbols, _ in theirs]
        for (_, a), (_, b) in zip(ours, theirs):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # fairseq keeps scores in float32


@pytest.mark.parametrize("case", ["delta", "delta/both", "linear", "dpfp_delta", "transformer", "transformer_xl"])
def test_beams_of_a_batch_of_unequal_prompts_are_those_of_each_prompt_read_anew(case):
    model = model_of(case)
    together = search(model, PROMPTS)
    assert_same(together, [search(model, [prompt], incremental=False)[0] for prompt in PROMPTS])
    for prompt, hypotheses in zip(PROMPTS, together):
        assert len(hypotheses) == 3 and all(symbols[: len(prompt)] == prompt for symbols, _ in hypotheses)
    assert any(symbols != together[0][0][0] for symbols, _ in together[0][1:])  # the beams do part


@pytest.mark.parametrize("case", ["delta", "linear", "transformer"])
def test_with_positions_a_text_is_read_anew_for_every_token(case):
    model = model_of(case, positional_encoding=True)
    for prompt, ((symbols, _), *_) in zip(PROMPTS, search(model, PROMPTS, beam_size=1), strict=True):
        expected = list(prompt)
        while len(expected) < 14 and expected[-1] != DICTIONARY.eos():
            scores = log_probs(model, model(torch.tensor([[DICTIONARY.eos(), *expected]])))[0, -1]
            scores[DICTIONARY.pad()] = -torch.inf
            expected.append(int(scores.argmax()))
        assert symbols == [*expected, DICTIONARY.eos()][: len(symbols)]
        assert len(symbols) >= len(expected)


@torch.no_grad()
def test_temperature_divides_what_the_biases_say_too():
    model, tokens = model_of("delta", cutoffs="4,8"), text(2, 6)
    plain = log_probs(model, model(tokens))[:, -1]
    warm, _ = TemperedEnsemble([model]).forward_decoder(tokens, [], [{}], temperature=2.5)
    expected = plain.exp() ** (1 / 2.5)
    torch.testing.assert_close(warm.exp(), expected / expected.sum(-1, keepdim=True))


# A state that does not fit


def state_of(case, batch=2, length=4, **parts):
    return model_of(case, **parts)(text(batch, length))[1]["state"]


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize(
    "case, state, words",
    [
        ("delta", lambda: state_of("delta", layers=3), ["2 layers", "3 entries"]),
        ("delta", lambda: state_of("delta", batch=5), ["(2, 2, 8, 8)", "(5, 2, 8, 8)"]),
        ("delta", lambda: state_of("dpfp_delta"), ["(2, 2, 8, 8)", "(2, 2, 16, 8)"]),
        ("delta", lambda: state_of("linear"), ["(2, 2, 8, 8)", "tuple"]),
        ("delta", lambda: [x.float() for x in state_of("delta")], ["float64", "float32"]),
        ("delta", lambda: torch.zeros(1), ["2 layers", "Tensor"]),
        ("linear", lambda: state_of("delta"), ["pair (W, z)", "Tensor"]),
        ("linear", lambda: state_of("transformer"), ["state[", "(2, 2, 4, 8)"]),
        ("transformer", lambda: state_of("delta"), ["keys and values", "Tensor"]),
        ("transformer", lambda: state_of("linear"), ["keys and values", "(2, 2, 8)"]),
        ("transformer", lambda: state_of("transformer", batch=1), ["(2, 2, T, 8)", "(1, 2, 4, 8)"]),
        ("transformer", lambda: [(k, v[:, :, 1:]) for k, v in state_of("transformer")], ["(2, 2, 4, 8)", "(2, 2, 3, 8)"]),
        ("transformer", lambda: [(k.float(), v.float()) for k, v in state_of("transformer")], ["float64", "float32"]),
        ("transformer_xl", lambda: state_of("delta"), ["(2, 384, 16)", "(2, 2, 8, 8)"]),
    ],
)
def test_a_state_of_another_model_or_batch_is_refused(case, state, words, length):
    with pytest.raises(ValueError) as error:
        model_of(case)(text(2, length), state=state())
    assert str(error.value).startswith("state")
    assert all(word in str(error.value) for word in words), error.value

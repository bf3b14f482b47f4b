"""Transformer-XL as a language model: its size, its state, and what memory does from segment to segment."""

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fwp_fairseq.generation import Sampler, generate
from fwp_fairseq.models.transformer_xl import TransformerXL, TransformerXLConfig

WIKITEXT103_SYMBOLS = range(267_737)  # 267,735 types, <s> and <pad>
MEDIUM = {"d_model": 256, "layers": 16, "heads": 8, "d_ffn": 2048, "cutoffs": "20000,40000,200000"}


def tiny(**parts):
    """With weights large enough that every layer looks far."""
    torch.manual_seed(1)
    dictionary = Dictionary()
    for word in "abcdefghijklmnopqrst":
        dictionary.add_symbol(word)
    sizes = {"d_model": 16, "layers": 2, "heads": 4, "d_ffn": 24, "cutoffs": "6,12", "mem_len": 5}
    model = TransformerXL(TransformerXLConfig(**{**sizes, **parts}), dictionary).double().eval()
    for parameter in model.decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def text(length, rows=2):
    return torch.randint(2, 24, (rows, length), generator=torch.Generator().manual_seed(3))


def in_segments(model, tokens, *lengths, state=None):
    """Hidden states of a text that is read in segments, the rest as the last, and the state after it."""
    hidden = []
    for segment in tokens.split([*lengths, tokens.shape[1] - sum(lengths)], dim=1):
        out, extra = model.decoder(segment, state=state)
        hidden.append(out)
        state = extra["state"]
    return torch.cat(hidden, dim=1), state


def assert_close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_parameters_with_the_vocabulary_of_wikitext103():
    with torch.device("meta"):
        model = TransformerXL(TransformerXLConfig(**MEDIUM), WIKITEXT103_SYMBOLS)
    # the medium softmax model, a projection of the distances in every layer, and the two biases
    assert model.parameter_count == 89_833_434 + 16 * 256 * 256 + 2 * 256 == 90_882_522


@pytest.mark.parametrize("length, numbers", [(8, 131_072), (64, 1_048_576), (128, 2_097_152), (384, 6_291_456)])
def test_state_of_segment_and_memory_in_numbers(length, numbers):
    with torch.device("meta"):
        as_trained = TransformerXL(TransformerXLConfig(**MEDIUM, mem_len=length), range(300_000))
        evaluated = TransformerXL(TransformerXLConfig(**MEDIUM, mem_len=384, mem_len_eval=length), range(300_000))
    assert as_trained.state_size(length) == evaluated.state_size(length) == numbers


def test_initialisation_of_the_shared_biases_is_the_authors():
    torch.manual_seed(1)
    model = TransformerXL(TransformerXLConfig(d_model=512, heads=4, layers=1, d_ffn=8), range(50))
    for bias in (model.decoder.r_w_bias, model.decoder.r_r_bias):
        assert bias.shape == (4, 128)
        assert bias.mean().item() == pytest.approx(0, abs=0.005) and bias.std().item() == pytest.approx(0.02, rel=0.2)
    assert not torch.equal(model.decoder.r_w_bias, model.decoder.r_r_bias)


@pytest.mark.parametrize("lengths", [(7,), (3, 3), (1, 6, 2), (1,) * 12])
def test_with_memory_for_all_of_it_segments_are_one_long_text(lengths):
    model, tokens = tiny(mem_len=20), text(13)
    whole, end = in_segments(model, tokens)
    parts, after = in_segments(model, tokens, *lengths)
    assert_close(parts, whole)
    for a, b in zip(after, end, strict=True):
        assert a.shape == (2, 13, 16)
        assert_close(a, b)


@pytest.mark.parametrize("lengths", [(), (6,), (2, 5, 1, 2), (1,) * 12])
def test_with_same_length_the_segments_do_not_matter(lengths):
    model, tokens = tiny(mem_len=4, same_length=True), text(13)
    # step by step, remembering 3 positions, a query sees these and itself: 4
    stepwise = tiny(mem_len=3)
    expected, _ = in_segments(stepwise, tokens, *[1] * 12)
    assert_close(in_segments(model, tokens, *lengths)[0], expected)
    assert not torch.allclose(in_segments(stepwise, tokens)[0], expected)  # there the first segment sees all of itself


def test_memory_reaches_as_far_as_the_layers_hand_it_on():
    # segments of 4, a memory of 2, 3 layers: position 12 sees the positions from 10 on, which saw from 6 on, from 2 on
    model = tiny(mem_len=2, layers=3)
    tokens = text(16)
    outputs = []
    for changed in (1, 2):
        other = tokens.clone()
        other[:, changed] = 2 + (other[:, changed] - 1) % 22
        outputs.append(in_segments(model, other, 4, 4, 4)[0][:, 12])
    original = in_segments(model, tokens, 4, 4, 4)[0][:, 12]
    assert torch.equal(outputs[0], original)
    assert not torch.equal(outputs[1], original)


def test_without_memory_every_segment_is_a_fresh_start():
    model, tokens = tiny(mem_len=0), text(10)
    parts, state = in_segments(model, tokens, 4)
    assert_close(parts[:, 4:], in_segments(model, tokens[:, 4:])[0])
    assert [tuple(memory.shape) for memory in state] == [(2, 0, 16)] * 2


@pytest.mark.parametrize("mem_len", [0, 5])
def test_a_symbol_is_generated_with_all_that_a_segment_remembers(mem_len):
    """Without memory, what was generated is read again with what was there before it."""
    model, likeliest = tiny(mem_len=mem_len), Sampler(temperature=0)
    prompt = [4, 5, 6, 7]
    first, second = generate(model, prompt, 2, window=5, sampler=likeliest)
    assert [first] == list(generate(model, prompt, 1, window=5, sampler=likeliest))
    assert [second] == list(generate(model, [*prompt, first], 1, window=5, sampler=likeliest))


def test_training_and_evaluation_have_their_own_memory_and_clamping():
    model, tokens = tiny(mem_len=3, mem_len_eval=6, clamp_len=2, clamp_len_eval=4, dropout=0.0), text(12)
    for training, mem_len, clamp_len in ((True, 3, 2), (False, 6, 4)):
        alone = tiny(mem_len=mem_len, clamp_len=clamp_len, dropout=0.0)
        hidden, state = in_segments(model.train(training), tokens, 5)
        assert_close(hidden, in_segments(alone, tokens, 5)[0])
        assert not torch.allclose(hidden, in_segments(tiny(mem_len=mem_len, dropout=0.0), tokens, 5)[0])
        assert {memory.shape[1] for memory in state} == {mem_len}


def test_clamped_distances_look_the_same():
    # once all distances but 0 and 1 are one, words further back may change places in a layer that sees words
    model = tiny(mem_len=20, layers=1, clamp_len=2)
    tokens = text(9)
    swapped = tokens[:, [3, 1, 2, 0, *range(4, 9)]]
    assert not torch.equal(tokens, swapped)
    assert_close(in_segments(model, tokens)[0][:, 5:], in_segments(model, swapped)[0][:, 5:])
    free = tiny(mem_len=20, layers=1)
    assert not torch.allclose(in_segments(free, tokens)[0][:, 5:], in_segments(free, swapped)[0][:, 5:])


def test_rows_of_the_state_follow_their_texts():
    model, tokens = tiny(), text(12, rows=3)
    whole, _ = in_segments(model, tokens, 6)
    _, state = in_segments(model, tokens[:, :6])
    order = torch.tensor([2, 0])
    state = [memory.index_select(0, order) for memory in state]
    assert_close(in_segments(model, tokens[order, 6:], state=state)[0], whole[order, 6:])


def test_padding_behind_a_text_changes_nothing():
    model, tokens = tiny(), text(12)
    padded = tokens.clone()
    padded[1, 9:] = 1
    hidden, _ = in_segments(model, padded, 6)
    assert_close(hidden[1, :9], in_segments(model, tokens[:, :9], 6)[0][1])
    assert_close(hidden[0], in_segments(model, tokens, 6)[0][0])


def test_probabilities_and_incremental_decoding_come_through_fairseqs_interface():
    model, tokens = tiny(mem_len=12), text(7)
    whole = model.get_normalized_probs(model(src_tokens=tokens, src_lengths=None), log_probs=True)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(2, 7, dtype=torch.float64))
    incremental = {}
    for end in range(1, 8):
        out = model.decoder(tokens[:, :end], incremental_state=incremental)
        assert out[0].shape == (2, 1, 16)
        assert_close(model.get_normalized_probs(out, log_probs=True)[:, 0], whole[:, end - 1])


def test_state_is_detached_and_training_reaches_every_parameter():
    model, tokens = tiny(dropout=0.1).train(), text(12)
    _, state = in_segments(model, tokens[:, :6])
    assert not any(memory.requires_grad for memory in state)
    hidden, _ = in_segments(model, tokens[:, 6:], state=state)
    model.decoder.adaptive_softmax(hidden.flatten(0, 1), tokens[:, 6:].flatten()).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


def test_dropout_falls_on_the_distances_as_on_the_embedding():
    model, seen = tiny(dropout=0.5, layers=2).train(), []
    for layer in model.decoder.layers:
        layer.register_forward_pre_hook(lambda _, args: seen.append((args[0], args[2].sinusoids)))
    model(text(40))
    assert (seen[0][0] == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert (seen[0][1] == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert seen[0][1] is seen[1][1]


def from_argparse(*arguments):
    parser = options.get_training_parser(default_task="fwp_language_modeling")
    args = options.parse_args_and_arch(parser, ["data-bin", "--arch", "fwp_transformer_xl_wt103_medium", *arguments])
    return convert_namespace_to_omegaconf(args).model


def test_named_architecture_is_the_medium_model_with_as_much_memory_as_segment():
    model = from_argparse()
    assert {name: model[name] for name in MEDIUM} == MEDIUM
    assert (model.mem_len, model.mem_len_eval, model.clamp_len, model.clamp_len_eval) == (384, None, -1, 384)
    model = from_argparse("--mem-len", "8", "--mem-len-eval", "64", "--same-length")
    assert (model.mem_len, model.mem_len_eval, model.same_length) == (8, 64, True)


@pytest.mark.parametrize(
    "parts, words",
    [
        ({"mem_len": -1}, ["mem_len:", "-1", "0 remembers nothing"]),
        ({"mem_len_eval": -3}, ["mem_len_eval:", "-3", ">= 0"]),
        ({"mem_len": 0, "same_length": True}, ["mem_len:", "same_length", ">= 1"]),
        ({"mem_len_eval": 0, "same_length": True}, ["mem_len_eval:", "same_length", ">= 1"]),
        ({"clamp_len": 0}, ["clamp_len:", "got 0", "-1"]),
        ({"clamp_len_eval": -2}, ["clamp_len_eval:", "got -2"]),
        ({"d_model": 15, "heads": 5}, ["d_model", "even", "15"]),
        ({"heads": 3}, ["d_model", "16", "heads=3"]),
        ({"layers": 0}, ["layers:", "got 0"]),
        ({"cutoffs": "6,40"}, ["cutoffs", "22 words", "6,40"]),
    ],
)
def test_settings_that_make_no_model_are_named(parts, words):
    with pytest.raises(ValueError) as error:
        tiny(**parts)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda state: state[:1], ["2 layers", "1 entries"]),
        (lambda state: state[0], ["2 layers", "Tensor"]),
        (lambda state: [memory[:1] for memory in state], ["(2, 5, 16)", "(1, 5, 16)", "layer 0"]),
        (lambda state: [memory[..., :8] for memory in state], ["(2, 5, 16)", "(2, 5, 8)"]),
        (lambda state: [state[0], state[1][:, 2:]], ["(2, 5, 16)", "layer 1", "(2, 3, 16)"]),
        (lambda state: [memory.repeat(1, 2, 1) for memory in state], ["(2, 10, 16)", "mem_len=5"]),
        (lambda state: [(memory, memory) for memory in state], ["layer 0", "tuple"]),
        (lambda state: [memory[0] for memory in state], ["(2, 5, 16)", "(5, 16)"]),
        (lambda state: [memory.float() for memory in state], ["float64", "float32", "layer 0"]),
    ],
)
def test_a_state_that_does_not_fit_is_named(change, words):
    model, tokens = tiny(), text(12)
    _, state = in_segments(model, tokens[:, :6])
    with pytest.raises(ValueError) as error:
        model.decoder(tokens[:, 6:], state=change(state))
    assert str(error.value).startswith("state:") and all(word in str(error.value) for word in words)

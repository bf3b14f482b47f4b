"""The language models: their exact sizes, initialisation, positions, and their place in fairseq's frame."""

import math

import pytest
import torch
from fairseq.data import Dictionary

from fwp_fairseq.models.language_model import FastWeightLanguageModel, LanguageModelConfig
from fwp_fairseq.modules.fast_weight_attention import FastWeightAttention
from fwp_fairseq.modules.positions import sinusoidal_positions

WIKITEXT103_SYMBOLS = range(267_737)  # 267,735 types, <s> and <pad>
CUTOFFS = "20000,40000,200000"


def small(**parts):
    return LanguageModelConfig(d_model=128, cutoffs=CUTOFFS, **parts)


def medium(**parts):
    return LanguageModelConfig(d_model=256, cutoffs=CUTOFFS, **parts)


def tiny(**parts):
    dictionary = Dictionary()
    for word in "abcdefghijklmnopqrst":
        dictionary.add_symbol(word)
    sizes = {"d_model": 16, "layers": 2, "heads": 4, "d_ffn": 24, "cutoffs": "6,12"}
    return FastWeightLanguageModel(LanguageModelConfig(**{**sizes, **parts}), dictionary)


@pytest.mark.parametrize(
    "cfg, parameters",
    [
        (small(attention="softmax", positional_encoding=True), 44_018_394),
        (small(update_rule="sum"), 44_018_394),
        (small(update_rule="sum", feature_map="dpfp"), 44_018_394),
        (small(update_rule="delta"), 44_034_778),
        (medium(attention="softmax", positional_encoding=True), 89_833_434),
        (medium(update_rule="sum"), 89_833_434),
        (medium(update_rule="delta"), 89_866_202),
        (medium(update_rule="delta", attention_normalization="both"), 89_866_202),
    ],
)
def test_parameters_with_the_vocabulary_of_wikitext103(cfg, parameters):
    with torch.device("meta"):
        assert FastWeightLanguageModel(cfg, WIKITEXT103_SYMBOLS).parameter_count == parameters


@pytest.mark.parametrize("d_model, heads, m", [(128, 8, 8), (256, 8, 16)])
def test_performers_have_as_many_features_as_a_key_has_numbers(d_model, heads, m):
    """Of the small and the medium setting."""
    layer = FastWeightAttention(d_model, heads, feature_map="favor")
    assert (layer.feature_map.m, layer.feature_map.d_phi) == (m, d_model // heads)


def test_random_features_are_no_parameters():
    assert tiny(feature_map="favor").parameter_count == tiny().parameter_count


def test_state_of_the_medium_models_in_numbers():
    with torch.device("meta"):
        states = [
            FastWeightLanguageModel(medium(**parts), WIKITEXT103_SYMBOLS).state_size(384)
            for parts in ({}, {"attention_normalization": "output"}, {"feature_map": "dpfp"}, {"attention": "softmax"})
        ]
    assert states == [16 * 8 * 32 * 32, 16 * 8 * 32 * 33, 16 * 8 * 64 * 32, 2 * 384 * 256 * 16]


def test_initialisation_is_the_authors():
    torch.manual_seed(1)
    model = FastWeightLanguageModel(LanguageModelConfig(d_model=64, layers=2, d_ffn=512, cutoffs="900,1800"), range(4002))
    seen = set()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
            continue
        mean = 1.0 if "norm" in name else 0.0
        tolerance = 5 * 0.02 / math.sqrt(parameter.numel())
        assert parameter.mean().item() == pytest.approx(mean, abs=tolerance), name
        assert parameter.std().item() == pytest.approx(0.02, rel=5 / math.sqrt(2 * parameter.numel())), name
        seen.add(name.split(".")[-2])
    assert {"embedding", "qkv_projection", "beta_projection", "output_projection", "attention_norm"} <= seen


def test_embedding_and_output_are_one_matrix():
    model = tiny()
    assert model.decoder.adaptive_softmax.embedding.weight is model.decoder.embedding.weight


def test_positions_count_down_to_the_last_token():
    positions = sinusoidal_positions(3, 4)
    for row, position in enumerate((2, 1, 0)):
        angles = (position, position / 100)
        expected = [*map(math.sin, angles), *map(math.cos, angles)]
        torch.testing.assert_close(positions[row], torch.tensor(expected))


@pytest.mark.parametrize("parts", [dict(), dict(attention="softmax"), dict(positional_encoding=False)])
def test_padding_behind_a_text_changes_nothing(parts):
    model, text = tiny(**parts).eval(), torch.tensor([[5, 2, 9, 7, 3], [6, 4, 1, 1, 1], [8, 8, 5, 3, 1]])
    padded = model(text)[0]
    for row, length in enumerate((5, 2, 4)):
        alone = model(text[row : row + 1, :length])[0]
        torch.testing.assert_close(padded[row : row + 1, :length], alone, atol=1e-6, rtol=1e-5)


def test_first_layer_gets_the_scaled_embedding_and_the_positions():
    model, symbols = tiny(positional_encoding=True).eval(), torch.tensor([[5, 2, 9]])
    seen = []
    model.decoder.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(symbols)
    table = model.decoder.embedding.weight
    expected = torch.stack([4 * table[3], 4 * table[0], 4 * table[7]]) + sinusoidal_positions(3, 16)
    torch.testing.assert_close(seen[0][0], expected)


def test_without_positions_only_the_mixing_knows_the_order():
    symbols = torch.tensor([[5, 6, 9]])
    swapped = torch.tensor([[6, 5, 9]])
    # the sum rule without positions reads the same from both orders; positions tell them apart
    for positional_encoding, same in ((False, True), (True, False)):
        model = tiny(update_rule="sum", layers=1, positional_encoding=positional_encoding).eval()
        torch.nn.init.normal_(model.decoder.layers[0].attention.qkv_projection.weight)
        a, b = (model(tokens)[0][0, -1] for tokens in (symbols, swapped))
        assert torch.allclose(a, b, atol=1e-5) == same


def test_probabilities_come_through_fairseqs_interface():
    model = tiny(positional_encoding=False).eval()
    tokens = torch.tensor([[4, 5, 6, 2], [7, 8, 2, 1]])  # the second is padded
    log_prob = model.get_normalized_probs(model(src_tokens=tokens, src_lengths=torch.tensor([4, 3])), log_probs=True)
    assert log_prob.shape == (2, 4, 24)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(2, 4))
    alone = model.get_normalized_probs(model(src_tokens=tokens[1:, :3]), log_probs=True)
    torch.testing.assert_close(log_prob[1:, :3], alone)


def test_dropout_is_everywhere_but_on_attention():
    torch.manual_seed(1)
    model, tokens = tiny(dropout=0.5, layers=1), torch.randint(2, 24, (4, 9))
    layer = model.decoder.layers[0]
    zeros = {}
    layer.register_forward_pre_hook(lambda _, args: zeros.update(embedding=(args[0] == 0).float().mean()))
    layer.ffn[3].register_forward_pre_hook(lambda _, args: zeros.update(relu=(args[0] == 0).float().mean()))
    layer.dropout.register_forward_hook(lambda _, __, out: zeros.setdefault("sublayers", []).append((out == 0).float().mean()))
    hidden, _ = model(tokens)
    assert zeros["embedding"] == pytest.approx(0.5, abs=0.1)
    assert zeros["relu"] == pytest.approx(0.75, abs=0.1)  # the ReLU's own half, and half of the rest
    assert len(zeros["sublayers"]) == 2 and all(share == pytest.approx(0.5, abs=0.1) for share in zeros["sublayers"])
    assert (hidden == 0).float().mean() == pytest.approx(0.5, abs=0.1)
    x = torch.randn(1, 7, 16)
    assert torch.equal(layer.attention(x)[0], layer.attention(x)[0])


@pytest.mark.parametrize(
    "parts, words",
    [
        ({"heads": 3}, ["d_model", "16", "heads=3"]),
        ({"cutoffs": "6,40"}, ["cutoffs", "22 words", "6,40"]),
        ({"cutoffs": "6,x"}, ["cutoffs", "6,x"]),
        ({"attention": "softmax", "positional_encoding": True, "d_model": 15, "heads": 5}, ["d_model", "even", "15"]),
    ],
)
def test_settings_that_make_no_model_are_named(parts, words):
    with pytest.raises(ValueError) as error:
        tiny(**parts)
    assert all(word in str(error.value) for word in words)

"""The attention layers against the paper's equations, written out here position by position."""

import pytest
import torch

from fwp_fairseq.modules.fast_weight_attention import FastWeightAttention
from fwp_fairseq.modules.softmax_attention import SoftmaxAttention

BATCH, LENGTH, D_MODEL, HEADS = 2, 21, 12, 3
D_HEAD = D_MODEL // HEADS


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def inputs(dtype=torch.float64):
    return torch.randn(BATCH, LENGTH, D_MODEL, dtype=dtype)


def fast_weights(**parts):
    return FastWeightAttention(D_MODEL, HEADS, **parts).double().eval()


def expected_phi(layer, x):
    """The feature map of one vector, from its definition."""
    name = layer.feature_map.name
    if name == "elu":
        return torch.where(x > 0, x + 1, x.exp())
    if name == "dpfp":
        r = torch.cat((x, -x)).clamp(min=0)
        return torch.stack([r[i] * r[i - j] for j in range(1, layer.feature_map.nu + 1) for i in range(len(r))])
    omega = layer.feature_map.omega
    signed = torch.cat((x @ omega, -(x @ omega)))
    return ((signed - x.square().sum() / 2).exp() + 1e-4) / (2 * omega.shape[1]) ** 0.5


def expected(layer, x):
    """The whole layer with loops over batch, heads and positions."""
    outputs = torch.zeros_like(x)
    for b in range(BATCH):
        reads = torch.zeros(LENGTH, D_MODEL, dtype=x.dtype)
        for h in range(HEADS):
            part = slice(h * D_HEAD, (h + 1) * D_HEAD)
            weights = z = None
            for t in range(LENGTH):
                q, k, v = ((layer.qkv_projection.weight @ x[b, t]).chunk(3)[i][part] for i in range(3))
                q, k = expected_phi(layer, q), expected_phi(layer, k)
                if layer.sum_normalization:
                    q, k = q / q.sum(), k / k.sum()
                if weights is None:
                    weights = torch.zeros(len(k), D_HEAD, dtype=x.dtype)
                    z = torch.zeros(len(k), dtype=x.dtype)
                if not layer.rule.uses_beta:
                    weights = weights + torch.outer(k, v)
                else:
                    beta = torch.sigmoid(layer.beta_projection.weight[h] @ x[b, t])
                    old = weights.T @ k
                    if layer.attention_normalization == "both" and t > 0:
                        old = old / (z @ k + 1e-5)
                    weights = weights + beta * torch.outer(k, v - old)
                z = z + k
                y = weights.T @ q
                if layer.attention_normalization != "none":
                    y = y / (z @ q + 1e-5)
                reads[t, part] = y / D_HEAD**0.5
        outputs[b] = reads @ layer.output_projection.weight.T
    return outputs


PARTS = [
    {"update_rule": "sum", "sum_normalization": False, "attention_normalization": "output"},
    {"update_rule": "sum", "sum_normalization": True, "feature_map": "dpfp"},
    {"update_rule": "sum", "sum_normalization": False, "attention_normalization": "output", "feature_map": "favor"},
    {"update_rule": "delta"},
    {"update_rule": "delta", "feature_map": "dpfp", "nu": 2},
    {"update_rule": "delta", "feature_map": "favor", "m": 5},
    {"update_rule": "delta", "sum_normalization": False},
    {"update_rule": "delta", "attention_normalization": "output"},
    {"update_rule": "delta", "attention_normalization": "both"},
]


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(map(str, parts.values())))
def test_layer_computes_the_equations(parts):
    layer, x = fast_weights(**parts), inputs()
    out, _ = layer(x)
    torch.testing.assert_close(out, expected(layer, x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(map(str, parts.values())))
def test_state_carries_the_sequence_on(parts):
    layer, x = fast_weights(**parts), inputs()
    whole, end = layer(x)
    first, state = layer(x[:, :8])
    second, state = layer(x[:, 8:], state)
    torch.testing.assert_close(torch.cat((first, second), dim=1), whole, rtol=1e-9, atol=1e-10)
    parts_of_state = state if isinstance(state, tuple) else (state,)
    for ours, theirs in zip(parts_of_state, end if isinstance(end, tuple) else (end,), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    assert sum(part[0].numel() for part in parts_of_state) == layer.state_size


def test_softmax_layer_is_causal_scaled_softmax():
    layer, x = SoftmaxAttention(D_MODEL, HEADS).double(), inputs()
    q, k, v = (x @ layer.qkv_projection.weight.T).chunk(3, dim=-1)
    reads = torch.zeros_like(x)
    for b in range(BATCH):
        for h in range(HEADS):
            part = slice(h * D_HEAD, (h + 1) * D_HEAD)
            for t in range(LENGTH):
                scores = k[b, : t + 1, part] @ q[b, t, part] / D_HEAD**0.5
                reads[b, t, part] = torch.softmax(scores, 0) @ v[b, : t + 1, part]
    torch.testing.assert_close(layer(x)[0], reads @ layer.output_projection.weight.T)


@pytest.mark.parametrize("layer", [SoftmaxAttention(D_MODEL, HEADS), FastWeightAttention(D_MODEL, HEADS)])
def test_no_position_sees_a_later_one(layer):
    x = inputs(torch.float32)
    changed = x.clone()
    changed[:, 9:] = torch.randn_like(changed[:, 9:])
    torch.testing.assert_close(layer(x)[0][:, :9], layer(changed)[0][:, :9])


def test_random_features_are_redrawn_in_training_and_fixed_and_saved_for_evaluation():
    layer, x = FastWeightAttention(D_MODEL, HEADS, feature_map="favor"), inputs(torch.float32)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    out = layer(x)[0]
    assert torch.equal(out, layer(x)[0])
    copy = FastWeightAttention(D_MODEL, HEADS, feature_map="favor").eval()
    copy.load_state_dict(layer.state_dict())
    assert torch.equal(out, copy(x)[0])


@pytest.mark.parametrize(
    "parts, words",
    [
        ({"heads": 5}, ["d_model", "12", "heads=5"]),
        ({"update_rule": "add"}, ["update_rule", "'add'", "delta"]),
        ({"feature_map": "relu"}, ["feature_map", "'relu'", "favor"]),
        ({"attention_normalization": "all"}, ["attention_normalization", "'all'", "output"]),
        ({"update_rule": "sum", "attention_normalization": "both"}, ["attention_normalization", "'both'", "sum", "output"]),
        ({"m": 4}, ["m:", "favor", "4"]),
        ({"feature_map": "dpfp", "nu": 0}, ["nu:", ">= 1", "0"]),
    ],
)
def test_parts_that_do_not_fit_are_named(parts, words):
    with pytest.raises(ValueError) as error:
        FastWeightAttention(**{"d_model": D_MODEL, "heads": HEADS, **parts})
    assert all(word in str(error.value) for word in words)


# As a drop-in for torch.nn.MultiheadAttention


@pytest.mark.parametrize("parts", PARTS)
def test_padding_writes_nothing_wherever_it_is(parts):
    layer, x = fast_weights(**parts), inputs()
    padded = torch.cat((torch.randn(BATCH, 3, D_MODEL, dtype=x.dtype), x, torch.randn(BATCH, 2, D_MODEL, dtype=x.dtype)), 1)
    mask = torch.ones(BATCH, LENGTH + 5, dtype=torch.bool)
    mask[:, 3:-2] = False
    for is_causal in (True, False):
        if parts.get("attention_normalization") == "both":
            continue  # there the first position is one that removes nothing, padding or not
        out, state = layer(x, is_causal=is_causal)
        padded_out, padded_state = layer(padded, key_padding_mask=mask, is_causal=is_causal)
        torch.testing.assert_close(padded_out[:, 3:-2], out)
        torch.testing.assert_close(padded_state, state)


@pytest.mark.parametrize("parts", PARTS)
def test_without_causality_every_position_reads_what_all_have_written(parts):
    layer, x = fast_weights(**parts), inputs()
    whole, _ = layer(x, is_causal=False)
    for t in (0, 7, LENGTH - 1):
        # a causal pass that asks at its end what position t asks: x[t] would be written twice, so it must not write
        asked = torch.cat((x, x[:, t : t + 1]), dim=1)
        mask = torch.zeros(BATCH, LENGTH + 1, dtype=torch.bool)
        mask[:, -1] = True
        causal, _ = layer(asked, key_padding_mask=mask)
        torch.testing.assert_close(whole[:, t], causal[:, -1])


@pytest.mark.parametrize("width, axes", [(1, 3), (0, 2), (0, 4)])
def test_an_input_of_another_shape_is_named(width, axes):
    x = inputs()
    wrong = torch.cat([x, x[..., :width]], -1) if axes == 3 else x[0] if axes == 2 else x[None]
    with pytest.raises(ValueError, match=r"x: expected shape \(B, L, \d+\), got"):
        fast_weights()(wrong)


def test_a_mask_of_another_shape_or_type_is_named():
    with pytest.raises(ValueError, match=r"key_padding_mask.*\(2, 21\).*\(2, 20\)"):
        fast_weights()(inputs(), key_padding_mask=torch.zeros(2, 20, dtype=torch.bool))
    with pytest.raises(ValueError, match="key_padding_mask.*torch.bool.*torch.float32"):
        fast_weights()(inputs(), key_padding_mask=torch.zeros(2, 21))

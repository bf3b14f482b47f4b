"""Linear attention in fairseq's translation frame against plain loops, under padding, and step by step."""

import pytest
import torch
from fairseq.modules import MultiheadAttention

from fwp_fairseq.modules.feature_map import FAVOR_EPS
from fwp_fairseq.modules.translation.linear_attention import CausalAttention, WholeSequenceAttention
from fwp_fairseq.ops import favor_feature_map

D_MODEL, HEADS = 12, 3
D_HEAD = D_MODEL // HEADS
FEATURE_MAPS = [{"feature_map": "elu"}, {"feature_map": "favor", "m": 5}, {"feature_map": "dpfp", "nu": 2}]
DELTA = {"update_rule": "delta", "sum_normalization": True}
RULES = [
    {"update_rule": "sum"},
    {"update_rule": "sum", "sum_normalization": True, "attention_normalization": "none"},
    {**DELTA, "attention_normalization": "none"},
    {**DELTA, "attention_normalization": "output"},
    {**DELTA, "attention_normalization": "both"},
]


def name(parts):
    return "-".join(str(value) for value in parts.values())


def whole(**parts):
    return WholeSequenceAttention(D_MODEL, HEADS, **parts).double().eval()


def causal(**parts):
    return CausalAttention(D_MODEL, HEADS, **parts).double().eval()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def tokens(length, batch=2, dtype=torch.float64):
    return torch.randn(length, batch, D_MODEL, dtype=dtype)


def padded(length, lengths, left):
    """(B, length), true at padding, for sentences of these lengths."""
    position = torch.arange(length)
    lengths = torch.tensor(lengths)[:, None]
    return position < length - lengths if left else position >= lengths


def phi(layer, x):
    """The feature map of one vector, from its definition."""
    feature_map = layer.feature_map
    if feature_map.name == "elu":
        return torch.where(x > 0, x + 1, x.exp())
    if feature_map.name == "dpfp":
        r = torch.cat((x, -x)).clamp(min=0)
        return torch.stack([r[i] * r[i - j] for j in range(1, feature_map.nu + 1) for i in range(len(r))])
    x = x / D_HEAD**0.25
    signed = torch.cat((x @ feature_map.omega, -(x @ feature_map.omega)))
    return ((signed - x.square().sum() / 2).exp() + 1e-4) / (2 * feature_map.omega.shape[1]) ** 0.5


def head(layer, project, x, h):
    return project(x)[h * D_HEAD : (h + 1) * D_HEAD]


def expected_whole(layer, query, source, mask):
    out = []
    for b in range(query.shape[1]):
        words = [source[s, b] for s in range(source.shape[0]) if mask is None or not mask[b, s]]
        for t in range(query.shape[0]):
            reads = []
            for h in range(HEADS):
                q = phi(layer, head(layer, layer.q_proj, query[t, b], h))
                scores = [phi(layer, head(layer, layer.k_proj, x, h)) @ q for x in words]
                read = sum(score * head(layer, layer.v_proj, x, h) for score, x in zip(scores, words))
                reads.append(read / (sum(scores) + 1e-5))
            out.append(layer.out_proj(torch.cat(reads)))
    return torch.stack(out).unflatten(0, (query.shape[1], query.shape[0])).transpose(0, 1)


def expected_causal(layer, x):
    reads = torch.zeros_like(x)
    for b in range(x.shape[1]):
        for h in range(HEADS):
            z = weights = 0
            steps = []
            for t in range(x.shape[0]):
                q, k = (phi(layer, head(layer, project, x[t, b], h)) for project in (layer.q_proj, layer.k_proj))
                v = head(layer, layer.v_proj, x[t, b], h)
                if layer.sum_normalization:
                    q, k = q / q.sum(), k / k.sum()
                if layer.beta_proj is not None:
                    removed = weights.T @ k if t else torch.zeros_like(v)
                    if layer.attention_normalization == "both" and t:
                        removed = removed / (z @ k + 1e-5)
                    v = torch.sigmoid(layer.beta_proj(x[t, b])[h]) * (v - removed)
                weights, z = weights + torch.outer(k, v), z + k
                read = weights.T @ q
                steps.append(read if layer.attention_normalization == "none" else read / (z @ q + 1e-5))
            reads[:, b, h * D_HEAD : (h + 1) * D_HEAD] = torch.stack(steps)
    return layer.out_proj(reads)


def assert_same_with_gradients(ours, theirs, layer):
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
    weights = torch.randn_like(ours)
    used = [p for p in layer.parameters() if p.requires_grad]
    for one, other in zip(*(torch.autograd.grad((y * weights).sum(), used) for y in (ours, theirs))):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("parts", FEATURE_MAPS, ids=name)
def test_whole_sequence_attention_computes_the_equations(parts, left):
    layer, query, source = whole(**parts), tokens(4), tokens(6)
    mask = padded(6, [6, 2], left)
    assert_same_with_gradients(
        layer(query, source, source, key_padding_mask=mask)[0], expected_whole(layer, query, source, mask), layer
    )


@pytest.mark.parametrize("rule", RULES, ids=name)
@pytest.mark.parametrize("parts", FEATURE_MAPS, ids=name)
def test_causal_attention_computes_the_equations(parts, rule):
    layer, x = causal(**parts, **rule), tokens(7)
    assert_same_with_gradients(layer(x, x, x)[0], expected_causal(layer, x), layer)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("rule", RULES, ids=name)
def test_padding_of_the_target_changes_nothing(rule, left):
    layer, x, lengths = causal(**rule), tokens(9, batch=3), [9, 1, 4]
    batch, _ = layer(x, x, x, key_padding_mask=padded(9, lengths, left))
    for b, length in enumerate(lengths):
        part = slice(9 - length, 9) if left else slice(0, length)
        alone = x[part, b : b + 1]
        torch.testing.assert_close(batch[part, b : b + 1], layer(alone, alone, alone)[0], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("parts", FEATURE_MAPS, ids=name)
def test_a_source_that_is_all_padding_reads_as_nothing(parts):
    layer, x = whole(**parts), tokens(5).requires_grad_()
    out, _ = layer(x, x, x, key_padding_mask=padded(5, [5, 0], left=False))
    torch.testing.assert_close(out[:, 1], layer.out_proj.bias.expand(5, -1))
    out.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("rule", RULES, ids=name)
@pytest.mark.parametrize("parts", FEATURE_MAPS, ids=name)
def test_steps_of_decoding_equal_the_whole_target(parts, rule):
    layer, x, kept = causal(**parts, **rule), tokens(8), {}
    mask = padded(8, [8, 3], left=True)
    steps = [layer(x[t : t + 1], x[t : t + 1], x[t : t + 1], mask[:, t : t + 1], kept)[0] for t in range(8)]
    torch.testing.assert_close(torch.cat(steps), layer(x, x, x, mask)[0], rtol=1e-8, atol=1e-9)


def test_the_source_is_summed_once():
    layer, query, source, kept = whole(), tokens(3), tokens(5), {}
    full, _ = layer(query, source, source, static_kv=True)
    first, _ = layer(query[:1], source, source, incremental_state=kept, static_kv=True)
    layer.k_proj.register_forward_hook(lambda *_: pytest.fail("the source was projected again"))
    later = [layer(query[t : t + 1], source, source, incremental_state=kept, static_kv=True)[0] for t in (1, 2)]
    torch.testing.assert_close(torch.cat((first, *later)), full)


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_what_is_kept_does_not_grow_and_is_as_large_as_the_layer_says(rule):
    layer, x, kept, sizes = causal(**rule), tokens(40), {}, set()
    for t in range(40):
        layer(x[t : t + 1], None, None, incremental_state=kept)
        sizes.add(sum(tensor.numel() for buffer in kept.values() for tensor in buffer.values()))
    assert sizes == {2 * layer.state_size}


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_beam_search_reorders_what_is_kept(rule):
    layer, x, order = causal(**rule), tokens(6, batch=3), torch.tensor([2, 0, 0, 1])
    kept = {}
    layer(x[:4], None, None, incremental_state=kept)
    layer.reorder_incremental_state(kept, order)
    out, _ = layer(x[4:, order], None, None, incremental_state=kept)
    torch.testing.assert_close(out, layer(x[:, order], None, None)[0][4:])


def test_sums_of_the_source_are_reordered_too():
    layer, query, source, order, kept = whole(), tokens(2, batch=3), tokens(5, batch=3), torch.tensor([1, 1, 2]), {}
    layer(query[:1], source, source, incremental_state=kept, static_kv=True)
    layer.reorder_incremental_state(kept, order)
    out, _ = layer(query[1:, order], source[:, order], source[:, order], incremental_state=kept, static_kv=True)
    torch.testing.assert_close(out, layer(query[1:, order], source[:, order], source[:, order])[0])


def test_keys_and_queries_of_different_places_share_a_draw_of_random_features():
    layer, x, seen = WholeSequenceAttention(D_MODEL, HEADS, feature_map="favor", m=4), tokens(3, dtype=torch.float32), []
    layer.feature_map.register_forward_hook(lambda _, inputs, outputs: seen.extend(zip(inputs, outputs)))
    layer(x, x[:2], x[:2])
    assert [projected.shape[2] for projected, _ in seen] == [3, 2]
    for projected, features in seen:
        assert torch.equal(features, favor_feature_map(projected, layer.feature_map.omega, FAVOR_EPS))


def test_random_features_are_redrawn_in_training_and_fixed_and_saved_for_evaluation():
    layer, x = WholeSequenceAttention(D_MODEL, HEADS, feature_map="favor", m=4), tokens(3, dtype=torch.float32)
    assert not torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    layer.eval()
    copy = WholeSequenceAttention(D_MODEL, HEADS, feature_map="favor", m=4).eval()
    copy.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x, x, x)[0], copy(x, x, x)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("parts", FEATURE_MAPS, ids=name)
def test_half_types_keep_their_state_in_float32(parts, dtype):
    x, kept = tokens(300, dtype=torch.float32), {}
    for layer in (WholeSequenceAttention(D_MODEL, HEADS, **parts), CausalAttention(D_MODEL, HEADS, **parts)):
        layer.eval()
        exact, _ = layer(x, x, x, incremental_state=kept, static_kv=True)
        half, kept_half = layer.to(dtype), {}
        out, _ = half(x.to(dtype), x.to(dtype), x.to(dtype), incremental_state=kept_half, static_kv=True)
        assert out.dtype == dtype
        assert {tensor.dtype for buffer in kept_half.values() for tensor in buffer.values()} == {torch.float32}
        torch.testing.assert_close(out.float(), exact, rtol=0.05, atol=0.05)


def test_projections_and_their_initialisation_are_fairseqs():
    torch.manual_seed(5)
    theirs = MultiheadAttention(D_MODEL, HEADS)
    for layer in (WholeSequenceAttention, CausalAttention):
        torch.manual_seed(5)
        ours = layer(D_MODEL, HEADS).state_dict()
        assert ours.keys() == theirs.state_dict().keys()
        assert all(torch.equal(ours[key], value) for key, value in theirs.state_dict().items())


@pytest.mark.parametrize(
    "layer, parts, words",
    [
        (whole, {"feature_map": "relu"}, ["feature_map", "'relu'", "favor"]),
        (whole, {"feature_map": "favor", "m": 0}, ["m:", ">= 1", "0"]),
        (whole, {"feature_map": "elu", "nu": 2}, ["nu:", "dpfp", "2"]),
        (causal, {"update_rule": "add"}, ["update_rule", "'add'", "delta"]),
        (causal, {"update_rule": "sum", "attention_normalization": "both"}, ["attention_normalization", "'both'", "sum", "output"]),
    ],
)
def test_parts_that_do_not_fit_are_named(layer, parts, words):
    with pytest.raises(ValueError) as error:
        layer(**parts)
    assert all(word in str(error.value) for word in words)


def test_a_mask_of_pairs_is_refused():
    x = tokens(3)
    with pytest.raises(ValueError, match="attn_mask"):
        whole()(x, x, x, attn_mask=torch.zeros(3, 3))

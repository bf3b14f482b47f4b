"""The synthetic model against its plain form: one-hot matrices through the projections, fast weights through `ops`."""

import pytest
import torch
import torch.nn.functional as F

from fwp_fairseq.data.retrieval import RetrievalEvaluationSet, RetrievalTrainingSet
from fwp_fairseq.models.retrieval import EPS, RetrievalModel, RetrievalModelConfig
from fwp_fairseq.ops import (
    dpfp_feature_map,
    elu_feature_map,
    favor_feature_map,
    favor_random_matrix,
    sum_normalize,
    tanh_feature_map,
)

SYMBOLS = 11
CURVES = {
    "softmax": dict(attention="softmax"),
    "elu": dict(feature_map="elu", update_rule="sum"),
    "dpfp_1": dict(feature_map="dpfp", nu=1, update_rule="sum"),
    "dpfp_3": dict(feature_map="dpfp", nu=3, update_rule="sum"),
    "favor_6": dict(feature_map="favor", m=6, update_rule="sum"),
    "elu_delta": dict(feature_map="elu", update_rule="delta"),
    "dpfp_2_delta": dict(feature_map="dpfp", nu=2, update_rule="delta"),
    "favor_6_delta": dict(feature_map="favor", m=6, update_rule="delta"),
    "dpfp_1_fwm": dict(feature_map="dpfp", nu=1, update_rule="fwm"),
    "tanh_fwm": dict(feature_map="tanh", update_rule="fwm"),
}


def build(parts):
    torch.manual_seed(0)
    return RetrievalModel(RetrievalModelConfig(**{"d_key": 8, **parts}), SYMBOLS).double()


def batch(repetition, queries):
    length = SYMBOLS * (2 if repetition else 1)
    if queries == 1:
        dataset = RetrievalTrainingSet(100, length, SYMBOLS, repetition, seed=1)
        return dataset.collater(dataset.__getitems__(range(3)))["net_input"]
    dataset = RetrievalEvaluationSet(3, length, SYMBOLS, repetition, seed=1)
    return dataset.collater([dataset[0]])["net_input"]


def plain(model, keys, values, queries, omega):
    """Step by step, nothing looked up and nothing left out."""
    cfg = model.cfg
    v = F.one_hot(values, SYMBOLS).double()
    e_k, e_q = model.embedding(keys), model.embedding(queries)
    k = model.key_projection(torch.cat((v, e_k), -1))
    q = model.query_projection(e_q)
    if cfg.attention == "softmax":
        return torch.softmax(q @ k.mT / cfg.d_key**0.5, -1) @ v
    phi = {
        "elu": elu_feature_map,
        "tanh": tanh_feature_map,
        "dpfp": lambda x: dpfp_feature_map(x, cfg.nu),
        "favor": lambda x: favor_feature_map(x, omega),
    }[cfg.feature_map]
    k, q = phi(k), phi(q)
    if cfg.update_rule != "sum":
        beta = torch.sigmoid(model.beta_projection(torch.cat((v, e_k), -1)))
    if cfg.update_rule == "delta":
        k, q = sum_normalize(k), q / (q.sum(-1, keepdim=True) + EPS)
    state = torch.zeros(k.shape[0], k.shape[-1], SYMBOLS, dtype=torch.double)
    z = torch.zeros(k.shape[0], k.shape[-1], dtype=torch.double)
    for t in range(keys.shape[1]):
        k_t, v_t = k[:, t], v[:, t]
        z = z + k_t
        if cfg.update_rule == "sum":
            state = state + k_t.unsqueeze(2) * v_t.unsqueeze(1)
            continue
        difference = v_t - torch.einsum("bkv,bk->bv", state, k_t)
        state = state + beta[:, t].unsqueeze(2) * k_t.unsqueeze(2) * difference.unsqueeze(1)
        if cfg.update_rule == "fwm" and t > 0:
            state = state / state.norm(dim=(1, 2), keepdim=True).clamp(min=1)
    out = q @ state
    if cfg.update_rule == "sum":
        return out / ((q @ z.unsqueeze(2)) + EPS)
    return F.layer_norm(out, (SYMBOLS,)) if cfg.update_rule == "fwm" else out


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("repetition", [False, True])
@pytest.mark.parametrize("curve", CURVES)
def test_model_equals_its_plain_form(curve, repetition, queries):
    model, inputs = build(CURVES[curve]), batch(repetition, queries)
    torch.manual_seed(3)
    omega = favor_random_matrix(8, 6) if "favor" in curve else None
    expected = plain(model, **inputs, omega=omega)
    torch.manual_seed(3)
    actual = model(**inputs)
    # the one draw of random features is in float32 on both sides, the fast weights of fwm are exact to rounding
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-8)
    weight = torch.rand_like(actual)
    names, parameters = zip(*model.named_parameters(), strict=True)
    expected = torch.autograd.grad((expected * weight).sum(), parameters)
    actual = torch.autograd.grad((actual * weight).sum(), parameters)
    for name, a, b in zip(names, actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


def test_initialisation_is_the_authors():
    torch.manual_seed(0)
    linear = RetrievalModel(RetrievalModelConfig(feature_map="elu", update_rule="delta"), 100)
    assert linear.embedding.weight.shape == (100, 220)
    assert abs(linear.embedding.weight.std().item() - 1) < 0.02
    assert linear.key_projection.weight.shape == (64, 320)
    for projection in (linear.key_projection, linear.query_projection):
        assert 0.12 < projection.weight.abs().max().item() <= 0.125
    softmax = RetrievalModel(RetrievalModelConfig(attention="softmax"), 100)
    bound = (6 / (320 + 64)) ** 0.5
    assert 0.95 * bound < softmax.key_projection.weight.abs().max().item() <= bound
    assert softmax.beta_projection is None


@pytest.mark.parametrize(
    "parts, named",
    [
        (dict(feature_map="dpfp", update_rule="sum"), "model.nu"),
        (dict(feature_map="dpfp", nu=0, update_rule="sum"), "model.nu"),
        (dict(feature_map="dpfp", nu=-1, update_rule="delta"), "model.nu"),
        (dict(feature_map="favor", update_rule="sum"), "model.m"),
        (dict(feature_map="favor", m=0, update_rule="sum"), "model.m"),
        (dict(feature_map="elu", nu=2, update_rule="sum"), "model.nu"),
        (dict(feature_map="relu", update_rule="sum"), "elu, dpfp, favor, tanh"),
        (dict(feature_map="elu", update_rule="oja"), "sum, delta, fwm"),
        (dict(feature_map="tanh", update_rule="delta"), "model.feature_map"),
        (dict(feature_map="elu", update_rule="sum", d_key=0), "model.d_key"),
    ],
)
def test_unfit_parts_are_named(parts, named):
    with pytest.raises(ValueError, match=named):
        build(parts)


def test_state_size_counts_the_fast_weights_and_z():
    assert build(CURVES["elu"]).state_size(40) == 8 * SYMBOLS + 8
    assert build(CURVES["dpfp_2_delta"]).state_size(40) == 32 * SYMBOLS
    assert build(CURVES["softmax"]).state_size(40) == 40 * (8 + SYMBOLS)

"""Transformer-XL's attention against the paper's equations, written out here score by score, memory carry included."""

import math

import pytest
import torch

from fwp_fairseq.modules.positions import sinusoidal_positions
from fwp_fairseq.modules.relative_attention import RelativeAttention, Segment, visible_keys

BATCH, D_MODEL, HEADS = 2, 12, 3
D_HEAD = D_MODEL // HEADS


def attention():
    """The layer and the biases u and v, large enough that every term of the scores matters."""
    torch.manual_seed(1)
    layer = RelativeAttention(D_MODEL, HEADS).double()
    biases = torch.randn(2, HEADS, D_HEAD, dtype=torch.float64)
    return layer, *(bias.clone().requires_grad_() for bias in biases)


def ours(layer, u, v, x, memory, mem_len, clamp_len=-1, same_length=False):
    length, memory_length = x.shape[1], memory.shape[1]
    sinusoids = sinusoidal_positions(memory_length + length, D_MODEL, clamp_len=clamp_len).to(x.dtype)
    visible = visible_keys(length, memory_length, mem_len if same_length else None)
    return layer(x, memory, Segment(sinusoids, visible, u, v, mem_len))


def sinusoid(distance):
    """R of the paper: the row of one distance, rounded as the float32 of the module is."""
    angles = [torch.tensor(float(distance)) * 10000 ** (-torch.tensor(2.0 * i) / D_MODEL) for i in range(D_MODEL // 2)]
    return torch.stack([*map(torch.sin, angles), *map(torch.cos, angles)]).double()


def expected(layer, u, v, x, memory, mem_len, clamp_len=-1, same_length=False):
    """Section 3.3 with loops over the batch, the heads, the queries and the keys."""
    context = torch.cat((memory.detach(), x), dim=1)
    w_k, w_v = layer.kv_projection.weight.chunk(2)
    outputs = []
    for b in range(BATCH):
        for t in range(x.shape[1]):
            i = memory.shape[1] + t
            first = max(0, i - mem_len + 1) if same_length else 0
            reads = []
            for h in range(HEADS):
                part = slice(h * D_HEAD, (h + 1) * D_HEAD)
                q = layer.q_projection.weight[part] @ context[b, i]
                scores, values = [], []
                for j in range(first, i + 1):
                    distance = i - j if clamp_len == -1 else min(i - j, clamp_len)
                    k = w_k[part] @ context[b, j]
                    r = layer.r_projection.weight[part] @ sinusoid(distance)
                    scores.append((q @ k + q @ r + u[h] @ k + v[h] @ r) / math.sqrt(D_HEAD))
                    values.append(w_v[part] @ context[b, j])
                reads.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
            outputs.append(layer.output_projection.weight @ torch.cat(reads))
    kept = min(context.shape[1], mem_len)
    return torch.stack(outputs).view_as(x), context[:, context.shape[1] - kept :]


def segments(*lengths):
    torch.manual_seed(2)
    return [torch.randn(BATCH, length, D_MODEL, dtype=torch.float64, requires_grad=True) for length in lengths]


SETTINGS = [
    {"mem_len": 0},
    {"mem_len": 1},
    {"mem_len": 2},
    {"mem_len": 4},
    {"mem_len": 7},
    {"mem_len": 7, "clamp_len": 3},
    {"mem_len": 4, "clamp_len": 1},
    {"mem_len": 2, "same_length": True},
    {"mem_len": 3, "same_length": True},
    {"mem_len": 6, "same_length": True, "clamp_len": 4},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_segments_in_a_row_and_their_gradients_follow_the_equations(setting):
    layer, u, v = attention()
    lengths = (4, 4, 1, 3)
    found = []
    for compute in (ours, expected):
        texts, outputs = segments(*lengths), []
        memory = texts[0][:, :0]
        for x in texts:
            out, memory = compute(layer, u, v, x, memory, **setting)
            outputs.append(out)
            assert memory.shape == (BATCH, min(sum(lengths[: len(outputs)]), setting["mem_len"]), D_MODEL)
        outputs = torch.cat(outputs, dim=1)
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=torch.float64).view_as(outputs)
        leaves = [*layer.parameters(), u, v, *texts]
        found.append((outputs, memory, *torch.autograd.grad((outputs * weights).sum(), leaves)))
    assert all(grad.abs().max() > 1e-4 for grad in found[0][2:])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_no_gradient_reaches_the_memory():
    layer, u, v = attention()
    memory, x = segments(3, 4)
    out, kept = ours(layer, u, v, x, memory, mem_len=5)
    out.sum().backward()
    assert memory.grad is None and x.grad is not None and not kept.requires_grad


def test_memory_keeps_its_own_numbers_only():
    # those of a view would be saved in a checkpoint whole
    layer, u, v = attention()
    x = torch.randn(1, 9, D_MODEL, dtype=torch.float64)
    _, kept = ours(layer, u, v, x, x[:, :0], mem_len=2)
    assert torch.equal(kept, x[:, 7:]) and kept.untyped_storage().nbytes() == 2 * D_MODEL * 8


def test_no_position_sees_a_later_one():
    layer, u, v = attention()
    memory, x = segments(3, 9)
    changed = torch.cat((x[:, :5], torch.randn_like(x[:, 5:])), dim=1)
    out, other = (ours(layer, u, v, text, memory, mem_len=3)[0] for text in (x, changed))
    torch.testing.assert_close(out[:, :5], other[:, :5])
    assert not torch.allclose(out[:, 5:], other[:, 5:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(dtype):
    layer, u, v = attention()
    memory, x = segments(3, 5)
    out, _ = ours(layer, u, v, x, memory, mem_len=3)
    half, kept = ours(layer.to(dtype), u.to(dtype), v.to(dtype), x.to(dtype), memory.to(dtype), mem_len=3)
    assert (half.dtype, kept.dtype) == (dtype, dtype)
    torch.testing.assert_close(half.double(), out, rtol=0.05, atol=0.05)


def test_heads_that_do_not_divide_the_model_are_named():
    with pytest.raises(ValueError, match="d_model.*12.*heads=5"):
        RelativeAttention(D_MODEL, 5)

"""The contenders of fwp-bench ops compute the same rules, and what is counted about them is right."""

import sys
import types

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fwp_fairseq.benchmarks.contenders import contenders
from fwp_fairseq.benchmarks.measure import forward_backward, make_inputs, peak_bytes, useful_flop

CPU = torch.device("cpu")


@pytest.fixture
def other_libraries(monkeypatch):
    """fla-core and pytorch-fast-transformers in miniature: their conventions, written out as L x L products."""

    def delta_rule_chunkwise(q, k, v, beta):
        length = q.shape[2]
        strict = torch.tril(beta.unsqueeze(-1) * (k @ k.mT), -1)
        written = torch.linalg.solve(torch.eye(length) + strict, beta.unsqueeze(-1) * v)
        return torch.tril(q * q.shape[-1] ** -0.5 @ k.mT) @ written, None

    def causal_dot_product(q, k, v):
        return torch.tril(q @ k.mT) @ v

    for module, function in (
        ("fla.ops.delta_rule.naive", delta_rule_chunkwise),
        ("fast_transformers.causal_product", causal_dot_product),
    ):
        names = module.split(".")
        for i in range(1, len(names) + 1):
            monkeypatch.setitem(sys.modules, ".".join(names[:i]), types.ModuleType(names[i - 1]))
        setattr(sys.modules[module], function.__name__, function)


def test_contenders_of_a_rule_agree(other_libraries):
    found, left_out = contenders(None, ("sum", "delta"), CPU, torch.float32)
    assert set(left_out) == {"sum/triton", "delta/triton"}
    inputs, gradient = make_inputs((2, 3, 33, 8, 5), CPU, torch.float32)
    outputs = {contender.label: forward_backward(contender, inputs, gradient) for contender in found}
    assert len(outputs) == 7
    for label, output in outputs.items():
        rule = label.split("/")[0]
        if rule != "softmax":
            torch.testing.assert_close(output, outputs[f"{rule}/reference"], rtol=1e-4, atol=1e-5)


def test_libraries_for_float32_are_left_out_in_other_dtypes(other_libraries):
    found, left_out = contenders(None, ("sum", "delta"), CPU, torch.bfloat16)
    assert "float32 only" in left_out["delta/fla"] and "float32 only" in left_out["sum/fast-transformers"]
    assert {"sum/torch", "delta/torch", "softmax/sdpa"} <= {contender.label for contender in found}


def test_peak_memory_is_what_was_held_at_once_beyond_what_there_was():
    megabyte = 2**18  # float32 numbers
    there_before = torch.zeros(16 * megabyte)

    def call():
        two = torch.zeros(2 * megabyte)
        five = torch.cat([two, two[:megabyte], two])
        del two, five
        return there_before[:6].clone(), torch.zeros(6 * megabyte)

    assert peak_bytes(call, CPU) == 7 * 2**20


def test_attention_is_counted_as_half_of_its_products():
    shape = (2, 3, 64, 16, 16)
    (attention,), _ = contenders(("sdpa",), ("delta",), CPU, torch.float32)
    inputs, gradient = make_inputs(shape, CPU, torch.float32)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        forward_backward(attention, inputs, gradient)
    # torch counts whole products, and none for scores computed again, which this kernel keeps.
    again = 2 * 2 * 3 * 64**2 * 16
    assert useful_flop("softmax", shape) == (counter.get_total_flops() + again) / 2


def test_the_rules_are_counted_step_by_step():
    # Per step and direction: a product with the state for reading, one for writing, for delta one more for removing;
    # multiply and add; the backward pass twice that.
    assert useful_flop("sum", (1, 1, 1, 3, 5)) == 3 * (2 + 2) * 15
    assert useful_flop("delta", (2, 4, 10, 3, 5)) == 80 * 3 * (2 + 2 + 2) * 15

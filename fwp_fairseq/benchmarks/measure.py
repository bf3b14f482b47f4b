"""Time, memory and arithmetic of one forward and backward pass, for `fwp-bench ops`."""

import json
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def make_inputs(shape, device, dtype, seed=1):
    """q, k, v, beta and the gradient of the output for (B, H, L, Dk, Dv).

    Queries and keys are positive and sum to 1, as behind a feature map and sum normalisation, so
    that all rules stay finite at any length.
    """
    batch, heads, length, key_dim, value_dim = shape
    generator = torch.Generator(device).manual_seed(seed)

    def uniform(*sizes):
        return torch.rand(batch, heads, length, *sizes, generator=generator, device=device)

    q, k = (x / x.sum(-1, keepdim=True) for x in (uniform(key_dim), uniform(key_dim)))
    v, beta, gradient = 2 * uniform(value_dim) - 1, uniform(), 2 * uniform(value_dim) - 1
    q, k, v, beta = (x.to(dtype).requires_grad_() for x in (q, k, v, beta))
    return (q, k, v, beta), gradient.to(dtype)


def forward_backward(contender, inputs, gradient):
    """One pass of a contender; returns its output without its history."""
    out = contender.call(*inputs)
    torch.autograd.grad(out, contender.inputs(*inputs), gradient)
    return out.detach()


def seconds(call, device):
    """Wall time of `call()`, including what a GPU still has to finish."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(call, device):
    """Most memory that the tensors made by `call()` take up at once, inputs not counted.

    CUDA: torch.cuda.max_memory_allocated. CPU: the same count, added up from the allocations and
    releases that torch's profiler reports. The growth of the process would say less: it depends on
    what ran before, and on what the C library gives back to the system.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event["name"] == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event["ts"]):
        held += change["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def useful_flop(rule, shape):
    """Floating point operations of a forward and backward pass that the rule itself asks for.

    Per step the sum rule writes and reads (2 Dk Dv each), the delta rule reads once more; the
    backward pass costs twice the forward one. Causal attention needs half of each L x L product:
    scores and output forward, backward the scores once more and four gradients. Chunked forms do
    more than their rule asks for, so the rate is one of useful work.
    """
    batch, heads, length, key_dim, value_dim = shape
    if rule == "softmax":
        return batch * heads * length**2 * (4 * key_dim + 3 * value_dim)
    products = {"sum": 2, "delta": 3}[rule]
    return 3 * products * 2 * batch * heads * length * key_dim * value_dim


class MatrixProduct:
    """A square matrix product, as the measure of what the machine can do."""

    def __init__(self, device, dtype):
        self.size = 8192 if device.type == "cuda" else 1024
        self.operand = torch.rand(self.size, self.size, device=device).to(dtype)

    def __call__(self):
        return self.operand @ self.operand

    @property
    def flop(self):
        return 2 * self.size**3

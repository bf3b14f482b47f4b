"""Every Triton kernel, as the functions launch it, compiled to a cubin for sm_80 and sm_90 without a GPU.

Meta tensors run the host code, so what is compiled is exactly what a call of that shape launches:
tiles, warps, stages and the specialisation on sizes divisible by 16. Checked are shared memory and
that registers do not spill.
"""

import re
import subprocess

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from fwp_fairseq.ops import triton_support
from tests.ops.triton_checks import tf32_allowed, triton_rule

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}  # what one block may use: A100, H100
SPILLED_BYTES = 256  # a few registers; a tile too large spills thousands
LARGEST, MIDDLE, SMALL = (512, 256), (128, 64), (16, 16)
LAUNCHES = {"sum": 5, "delta": 6}


@pytest.fixture
def launches(monkeypatch):
    """Collects (kernel, grid, arguments, options) in the place of launching."""
    recorded = []

    def record(kernel, grid, *args, **options):
        recorded.append((kernel, grid, args, options))

    monkeypatch.setattr(triton_support, "launch", record)
    return recorded


def run_on_meta(rule, batch, heads, length, key_dim, value_dim, dtype):
    def empty(*shape, dtype=dtype):
        return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=True)

    lead = (batch, heads, length)
    inputs = [empty(*lead, key_dim), empty(*lead, key_dim), empty(*lead, value_dim)]
    if rule == "delta":
        inputs.append(empty(*lead))
    results = triton_rule(rule)(*inputs, empty(batch, heads, key_dim, value_dim, dtype=torch.float32))
    torch.autograd.backward(results, [torch.empty_like(x) for x in results])


def compile_launch(kernel, args, options, capability):
    """The kernel as `JITFunction.run` would compile it for these arguments on a GPU of that capability."""
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    packed = kernel._pack_args(backend, options, *bind(*args, **options))
    compile_options, signature, constants, attributes = packed
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options=compile_options.__dict__)


def spilled_bytes(cubin, path):
    path.write_bytes(cubin)
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage).group(1))


def check_compiled(launches, tmp_path, rule, sizes, dtype, capability, heads=128, length=300):
    run_on_meta(rule, 1, heads, length, *sizes, dtype)
    assert len(launches) == LAUNCHES[rule]
    for kernel, _, args, options in launches:
        compiled = compile_launch(kernel, args, options, capability)
        assert compiled.metadata.shared <= SHARED_MEMORY[capability], kernel.fn.__name__
        spilled = spilled_bytes(compiled.asm["cubin"], tmp_path / "kernel.cubin")
        assert spilled <= SPILLED_BYTES, (kernel.fn.__name__, spilled)


@pytest.mark.parametrize(
    "rule, sizes, dtype, capability",
    [
        ("sum", LARGEST, torch.bfloat16, 80),
        ("delta", LARGEST, torch.float32, 80),
        ("delta", LARGEST, torch.bfloat16, 90),
    ],
    ids=str,
)
def test_the_largest_sizes_fit_on_the_chip(launches, tmp_path, rule, sizes, dtype, capability):
    check_compiled(launches, tmp_path, rule, sizes, dtype, capability)


def test_a_single_step_compiles(launches, tmp_path):
    # Sizes of 1 become constants of the kernel.
    check_compiled(launches, tmp_path, "delta", (1, 1), torch.float16, 90, heads=1, length=1)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 128])  # few heads: narrower tiles in the scans
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [LARGEST, (300, 65), MIDDLE, (64, 64), (1, 1), SMALL], ids=str)
@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_every_size_fits_on_the_chip(launches, tmp_path, rule, sizes, dtype, capability, heads):
    check_compiled(launches, tmp_path, rule, sizes, dtype, capability, heads)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_float32_with_tf32_allowed_fits_on_the_chip(launches, tmp_path, rule, capability):
    with tf32_allowed():
        check_compiled(launches, tmp_path, rule, LARGEST, torch.float32, capability)


def test_float32_is_multiplied_in_full_unless_the_user_allows_tf32(launches):
    run_on_meta("sum", 1, 1, 16, 16, 16, torch.float32)
    assert {options["PRECISION"] for *_, options in launches} == {"tf32x3"}
    launches.clear()
    with tf32_allowed():
        run_on_meta("sum", 1, 1, 16, 16, 16, torch.float32)
    assert {options["PRECISION"] for *_, options in launches} == {"tf32"}


@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_only_the_first_grid_axis_grows_with_batch_heads_and_length(launches, rule):
    run_on_meta(rule, 700, 100, 100_000, 16, 16, torch.bfloat16)
    for kernel, grid, *_ in launches:
        assert grid[0] >= 70_000, kernel.fn.__name__
        assert all(axis <= 65_535 for axis in grid[1:]), kernel.fn.__name__

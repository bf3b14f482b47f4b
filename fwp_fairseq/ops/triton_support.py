"""What the Triton kernels of both update rules share: which calls they can run, tile sizes, launching.

Used by `triton_sum.py`, `triton_delta.py` and by the backend choice, which asks
`why_not_triton(q, k, v)` before it takes Triton. Imports without Triton installed.
"""

import importlib.util
from dataclasses import dataclass

import torch

# The largest sizes that the compile tests cover; nothing in the kernels ends there.
MAX_KEY_DIM = 512
MAX_VALUE_DIM = 256
TENSOR_CORE_TILE = 16  # tl.dot takes no smaller side
BUSY_PROGRAMS = 128  # about one for each multiprocessor of an A100 or H100
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def interpreting() -> bool:
    """Whether Triton runs kernels in its CPU interpreter (TRITON_INTERPRET=1)."""
    import triton

    return triton.knobs.runtime.interpret


def why_not_triton(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """The reason why the Triton kernels cannot run this call, or None when they can.

    q, k: (B, H, L, Dk), v: (B, H, L, Dv), as for `fast_weight_sum`.
    """
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dtype not in DTYPES:
            return f"{name} is {tensor.dtype}; the kernels take float32, bfloat16 and float16"
    if q.shape[-1] > MAX_KEY_DIM:
        return f"Dk is {q.shape[-1]}; the kernels take at most {MAX_KEY_DIM}"
    if v.shape[-1] > MAX_VALUE_DIM:
        return f"Dv is {v.shape[-1]}; the kernels take at most {MAX_VALUE_DIM}"
    if interpreting():
        return None
    if q.device.type != "cuda" or torch.version.hip is not None:
        return f"the tensors are on {q.device}; the kernels need an NVIDIA GPU"
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        return f"{torch.cuda.get_device_name(q.device)} is older than Ampere (compute capability 8.0)"
    return None


def power_of_two_at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Tiles:
    """How one call is cut: chunk length C, key tile BK, value tile BV, and the precision of tl.dot.

    The scans over chunks work on SV columns of the state, those of the delta rule on SK rows of it
    at a time; where SK covers Dk the state stays in registers from chunk to chunk. Chosen once a call
    and kept for its backward pass.
    """

    C: int
    BK: int
    BV: int
    SK: int
    SV: int
    precision: str


def choose_tiles(q: torch.Tensor, v: torch.Tensor) -> Tiles:
    """One fixed choice by shape: autotuning would compile every kernel many times at the first call."""
    batch, heads, length, key_dim = q.shape
    value_dim = v.shape[-1]
    precision = dot_precision(q.dtype)
    # Three TF32 products hold every operand twice. On sm_80 tiles of 64 then spill thousands of bytes.
    side = 32 if precision == "tf32x3" else 64
    # A chunk costs C^2 (Dk + Dv) inside and C Dk Dv towards the state, so small heads want short
    # chunks; long ones save one state less often.
    chunk = min(side if key_dim > 32 else 32, power_of_two_at_least(max(length, TENSOR_CORE_TILE)))
    whole_key = power_of_two_at_least(max(key_dim, TENSOR_CORE_TILE))
    in_registers = whole_key <= 2 * side
    scan_tile = value_tile_at_most(side // 2 if whole_key == 2 * side else side, value_dim)
    # The scans run in parallel over heads and columns of the state alone: with few heads, narrow
    # columns keep more of the GPU busy.
    while scan_tile > TENSOR_CORE_TILE and batch * heads * -(-value_dim // scan_tile) < BUSY_PROGRAMS:
        scan_tile //= 2
    return Tiles(
        C=chunk,
        BK=min(side, whole_key),
        BV=value_tile_at_most(side, value_dim),
        SK=whole_key if in_registers else side,
        SV=scan_tile,
        precision=precision,
    )


def value_tile_at_most(largest: int, value_dim: int) -> int:
    """The value tile (16 to `largest`) that wastes least: 65 columns are three tiles of 32, not two of 64."""
    tiles = [size for size in (64, 32, 16) if size <= largest]
    return min(tiles, key=lambda size: -(-value_dim // size) * (size + TENSOR_CORE_TILE))


def dot_precision(dtype: torch.dtype) -> str:
    """How tensor cores multiply float32 operands, for inputs of this dtype.

    16-bit inputs are exact in TF32, which also has float32's range: casting the state to float16
    instead could overflow. float32 inputs follow torch's own switch: plain TF32 if the user allowed
    it, else three TF32 products, which recover float32's accuracy at a multiple of the speed of
    "ieee" (no tensor cores, and minutes of compilation at Dk = 512).
    """
    if dtype != torch.float32:
        return "tf32"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def launch(kernel, grid, *args, **options) -> None:
    """Every kernel starts here, so that a test can record the launches and compile exactly those."""
    kernel[grid](*args, **options)

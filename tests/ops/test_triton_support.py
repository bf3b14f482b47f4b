"""The reasons given when the Triton kernels cannot run a call, and how calls are cut into tiles."""

import importlib.util

import pytest
import torch

from fwp_fairseq.ops.triton_support import choose_tiles, why_not_triton


def reason(key_dim=16, value_dim=16, dtype=torch.float32):
    q = torch.ones(1, 1, 2, key_dim, dtype=dtype)
    return why_not_triton(q, q, torch.ones(1, 1, 2, value_dim, dtype=dtype))


def test_each_obstacle_is_named_with_its_value():
    assert "q is torch.float64" in reason(dtype=torch.float64)
    assert "Dk is 513" in reason(key_dim=513)
    assert "Dv is 257" in reason(value_dim=257)
    assert "tensors are on cpu" in reason(key_dim=512, value_dim=256)


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "triton is not installed" in reason()


@pytest.mark.parametrize("length, key_dim, chunk", [(1, 64, 16), (17, 64, 32), (1000, 64, 64), (1000, 16, 32)])
def test_chunks_are_no_longer_than_the_sequence_needs(length, key_dim, chunk):
    q = torch.empty(1, 1, length, key_dim, dtype=torch.bfloat16, device="meta")
    assert choose_tiles(q, q).C == chunk


@pytest.mark.parametrize("value_dim, tile", [(1, 16), (64, 64), (65, 32), (96, 32), (128, 64)])
def test_value_tiles_waste_little(value_dim, tile):
    v = torch.empty(1, 1, 100, value_dim, dtype=torch.bfloat16, device="meta")
    assert choose_tiles(v, v).BV == tile


def test_few_heads_are_spread_over_more_programs():
    one, many = (torch.empty(n, 1, 100, 64, dtype=torch.bfloat16, device="meta") for n in (1, 128))
    assert choose_tiles(one, one).SV < choose_tiles(many, many).SV == 64

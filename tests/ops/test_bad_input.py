"""What does not fit is refused with a ValueError naming the argument, what was expected and what came."""

import logging
import re

import pytest
import torch

from fwp_fairseq.ops import (
    fast_weight_delta,
    fast_weight_fwm,
    fast_weight_step,
    fast_weight_sum,
    fast_weights,
    normalized_fast_weight_delta,
    normalized_fast_weight_step,
    normalized_fast_weight_sum,
)

Q = torch.rand(2, 3, 10, 4)
V = torch.rand(2, 3, 10, 5)
BETA = torch.rand(2, 3, 10)
STATE = torch.zeros(2, 3, 4, 5)


@pytest.mark.parametrize(
    "message, call",
    [
        ("q: expected shape (B, H, L, Dk)", lambda: fast_weight_sum(Q[0], Q[0], V[0])),
        ("q: expected shape (B, H, L, Dk) without an empty axis, got (2, 3, 0, 4)",
         lambda: fast_weight_sum(Q[:, :, :0], Q[:, :, :0], V[:, :, :0])),
        ("k: expected shape (B, H, L, Dk) = (2, 3, 10, 4), got (2, 3, 10, 3)",
         lambda: fast_weight_sum(Q, Q[..., :3], V)),
        ("v: expected shape (B, H, L, Dv) = (2, 3, 10, 'Dv') with Dv >= 1, got (2, 3, 9, 5)",
         lambda: fast_weight_delta(Q, Q, V[:, :, :9], BETA)),
        ("beta: expected shape (B, H, L) = (2, 3, 10), got (2, 3, 10, 1)",
         lambda: fast_weight_delta(Q, Q, V, BETA.unsqueeze(-1))),
        ("beta: expected a tensor, got NoneType", lambda: fast_weight_delta(Q, Q, V, None)),
        ("state: expected shape (B, H, Dk, Dv) = (2, 3, 4, 5), got (2, 3, 5, 4)",
         lambda: fast_weight_sum(Q, Q, V, STATE.mT)),
        ("state: expected torch.float32 for inputs of torch.bfloat16, got torch.bfloat16",
         lambda: fast_weight_sum(Q.bfloat16(), Q.bfloat16(), V.bfloat16(), STATE.bfloat16())),
        ("v: expected the dtype of q, torch.float32, got torch.float64",
         lambda: fast_weight_sum(Q, Q, V.double())),
        ("q: expected one of torch.float32, torch.float64, torch.bfloat16, torch.float16, got torch.int64",
         lambda: fast_weight_sum(Q.long(), Q.long(), V.long())),
        ("k: expected the device of q, cpu, got meta", lambda: fast_weight_sum(Q, Q.to("meta"), V)),
        ("backend: expected one of auto, reference, torch, triton, got 'cuda'",
         lambda: fast_weight_sum(Q, Q, V, backend="cuda")),
        ("backend: 'triton' cannot run here", lambda: fast_weight_sum(Q, Q, V, backend="triton")),
        ("q: expected shape (B, H, Dk)", lambda: fast_weight_step(STATE, Q, Q, V)),
        ("state: expected a tensor of shape (B, H, Dk, Dv) = (2, 3, 4, 5), got NoneType",
         lambda: fast_weight_step(None, Q[:, :, 0], Q[:, :, 0], V[:, :, 0])),
        ("state: expected shape (B, H, Dk, Dv) = (2, 3, 4, 5), got (2, 3, 4, 4)",
         lambda: fast_weight_step(STATE[..., :4], Q[:, :, 0], Q[:, :, 0], V[:, :, 0])),
        ("state: expected a pair (W, z) or None, got Tensor",
         lambda: normalized_fast_weight_sum(Q, Q, V, STATE)),
        ("state[1]: expected shape (B, H, Dk) = (2, 3, 4), got (2, 3, 4, 5)",
         lambda: normalized_fast_weight_sum(Q, Q, V, (STATE, STATE))),
        ("normalisation: expected one of output, both, got 'none'",
         lambda: normalized_fast_weight_delta(Q, Q, V, BETA, normalisation="none")),
        ("normalisation: expected one of output, got 'both'",
         lambda: normalized_fast_weight_step((STATE, STATE[..., 0]), Q[:, :, 0], Q[:, :, 0], V[:, :, 0], None, "both")),
        ("state[1]: expected shape (B, H, Dk) = (2, 3, 4), got (2, 3, 5)",
         lambda: normalized_fast_weight_step((STATE, STATE[:, :, 0]), Q[:, :, 0], Q[:, :, 0], V[:, :, 0])),
        ("beta: expected shape (B, L) = (3, 10), got (10,)",
         lambda: fast_weight_fwm(Q[0], V[0], BETA[0, 0])),
    ],
)
def test_message(message, call):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        call()


def test_auto_says_once_what_it_chose(caplog, monkeypatch):
    monkeypatch.setattr(fast_weights, "_announced", set())
    with caplog.at_level(logging.INFO):
        fast_weight_sum(Q, Q, V)
        fast_weight_delta(Q, Q, V, BETA)
    assert [record.getMessage() for record in caplog.records] == [
        "fast weights on cpu: backend torch (the tensors are not on a GPU)"
    ]

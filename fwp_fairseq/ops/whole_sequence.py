"""Linear attention in which every query reads the whole sequence, as in an encoder or from one.

The sum rule without an order: `W = sum_i k_i v_i^T`, `z = sum_i k_i`, read by `W^T q / (z . q + eps)`.
"""

import torch

from fwp_fairseq.ops.feature_maps import accumulation_dtype
from fwp_fairseq.ops.validation import check_inputs


def sum_over_sequence(k, v):
    """`(W, z)` after all steps: `k: (B, H, L, Dk)` after the feature map, `v: (B, H, L, Dv)`.

    `W: (B, H, Dk, Dv)` and `z: (B, H, Dk)` are float32 (float64 for float64 inputs). A step whose key is zero leaves
    no trace. Raises `ValueError` where a shape, dtype or device does not fit.
    """
    check_inputs("B, H, L", k, k, v)
    with torch.autocast(v.device.type, enabled=False):
        k, v = (x.to(accumulation_dtype(x)) for x in (k, v))
        return k.mT @ v, k.sum(dim=2)


def read_normalized(state, q, eps=1e-5):
    """`W^T q / (z . q + eps)` for the `state` of `sum_over_sequence` and queries `(B, H, Q, Dk)` after the feature map.

    Returns `(B, H, Q, Dv)` in the dtype of `q`: zeros where nothing was written.
    """
    weights, sums = state
    with torch.autocast(q.device.type, enabled=False):
        queries = q.to(weights.dtype)
        return (queries @ weights / (queries @ sums.unsqueeze(-1) + eps)).to(q.dtype)


def read_whole_sequence(q, k, v, eps=1e-5):
    """What `read_normalized` gives for the state of `sum_over_sequence`, by whichever way is the shorter one.

    Of few steps the `Q x L` products of queries and keys are smaller than a state. Shapes, dtypes and errors as there.
    """
    length, queries, key_size, value_size = k.shape[2], q.shape[2], k.shape[3], v.shape[3]
    if queries * length * (key_size + value_size) > key_size * value_size * (queries + length):
        return read_normalized(sum_over_sequence(k, v), q, eps)
    check_inputs("B, H, L", k, k, v)
    with torch.autocast(v.device.type, enabled=False):
        queries, keys, values = (x.to(accumulation_dtype(x)) for x in (q, k, v))
        scores = queries @ keys.mT
        return (scores @ values / (scores.sum(-1, keepdim=True) + eps)).to(q.dtype)


def read_state(state, q):
    """What queries `(B, H, Q, Dk)` read from a state: `W^T q`, or `read_normalized` where it is a pair `(W, z)`."""
    if isinstance(state, tuple):
        return read_normalized(state, q)
    with torch.autocast(q.device.type, enabled=False):
        return (q.to(state.dtype) @ state).to(q.dtype)

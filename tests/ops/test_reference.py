"""The step-by-step rules against independent forms: worked by hand, as attention, as a dictionary."""

import torch
import torch.nn.functional as F

from fwp_fairseq.ops import fast_weight_delta, fast_weight_sum
from fwp_fairseq.ops.reference import (
    fast_weight_fwm_reference,
    linear_attention_reference,
    normalized_fast_weight_reference,
)
from tests.ops.rule_inputs import make_inputs


def test_linear_attention_as_attention_equals_the_fast_weight_recurrence():
    q, k, v, _ = make_inputs("sum", length=50)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) * torch.ones(50, 50).tril()
    for backend in ("reference", "torch"):
        torch.testing.assert_close(fast_weight_sum(q, k, v, backend=backend)[0], scores @ v)
    torch.testing.assert_close(linear_attention_reference(q, k, v), scores @ v)


def test_normalised_linear_attention_is_a_weighted_mean_of_the_values():
    q, k, v, _ = make_inputs("sum", length=50)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) * torch.ones(50, 50).tril()
    mean = scores / scores.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(linear_attention_reference(q, k, v, eps=0.0), mean)
    torch.testing.assert_close(normalized_fast_weight_reference(q, k, v, eps=0.0)[0], mean)


def test_delta_rule_overwrites_where_the_sum_rule_adds_up():
    key = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]).view(1, 1, 3, 2)
    value = torch.tensor([[3.0], [5.0], [7.0]]).view(1, 1, 3, 1)
    query = torch.tensor([0.0, 1.0]).expand(1, 1, 3, 2)
    for backend in ("reference", "torch"):
        added, _ = fast_weight_sum(query, key, value, backend=backend)
        assert added.flatten().tolist() == [3, 8, 8]
        replaced, state = fast_weight_delta(query, key, value, torch.ones(1, 1, 3), backend=backend)
        assert replaced.flatten().tolist() == [3, 5, 5]
        assert state.flatten().tolist() == [7, 5]
        half, _ = fast_weight_delta(query, key, value, torch.full((1, 1, 3), 0.5), backend=backend)
        assert half.flatten().tolist() == [1.5, 3.25, 3.25]


def test_fwm_rule_rescales_from_the_second_step_on_and_reads_through_a_layer_norm():
    key = torch.tensor([[3.0, 0.0], [0.0, 4.0]]).view(1, 1, 2, 2)
    value = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 1, 2, 2)
    query, beta = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2)
    out, state = fast_weight_fwm_reference(query, key, value, beta)
    torch.testing.assert_close(state[0, 0], torch.tensor([[0.6, 0.0], [0.0, 0.8]]))
    torch.testing.assert_close(out[0, 0, 1], F.layer_norm(torch.tensor([0.6, 0.8]), (2,)))
    first = fast_weight_fwm_reference(query[:, :, :1], key[:, :, :1], value[:, :, :1], beta[:, :, :1])[1]
    assert first[0, 0].tolist() == [[3, 0], [0, 0]]

"""The adaptive output against a plain softmax over all words that spells the factorisation out."""

import math

import pytest
import torch
from torch import nn

from fwp_fairseq.modules.adaptive_output import AdaptiveOutput

WORDS, D_MODEL, CUTOFFS, FIRST = 23, 6, (7, 11, 20), 2


def make_output(cutoffs=CUTOFFS):
    torch.manual_seed(1)
    output = AdaptiveOutput(nn.Embedding(WORDS, D_MODEL), cutoffs, FIRST).double()
    for parameter in output.parameters():
        nn.init.normal_(parameter)
    return output


@torch.no_grad()
def spelled_out(output, hidden):
    """p of each of the words for one hidden state: p(cluster) p(word | cluster), by plain Python."""
    scores = [float(w @ hidden + b) for w, b in zip(output.embedding.weight, output.bias)]
    of_cluster = [float(w @ hidden + b) for w, b in zip(output.cluster_weight, output.cluster_bias)]
    bounds = [0, *CUTOFFS, WORDS]
    total = sum(map(math.exp, scores[: CUTOFFS[0]] + of_cluster))
    probabilities = [math.exp(score) / total for score in scores[: CUTOFFS[0]]]
    for cluster, (low, high) in enumerate(zip(bounds[1:], bounds[2:])):
        inside = sum(map(math.exp, scores[low:high]))
        probabilities += [math.exp(of_cluster[cluster]) / total * math.exp(s) / inside for s in scores[low:high]]
    return torch.tensor(probabilities, dtype=torch.float64)


def test_loss_is_that_of_the_spelled_out_softmax_for_every_word():
    output = make_output()
    hidden = torch.randn(WORDS, D_MODEL, dtype=torch.float64)
    loss = output(hidden, torch.arange(WORDS) + FIRST)
    expected = torch.stack([-spelled_out(output, hidden[word])[word].log() for word in range(WORDS)])
    torch.testing.assert_close(loss, expected)


def test_log_probabilities_cover_the_dictionary_and_sum_to_one():
    output = make_output()
    hidden = torch.randn(2, 3, D_MODEL, dtype=torch.float64)
    log_prob = output.get_log_prob(hidden)
    assert log_prob.shape == (2, 3, WORDS + FIRST)
    assert (log_prob[..., :FIRST] == -math.inf).all()
    torch.testing.assert_close(log_prob[1, 2, FIRST:].exp(), spelled_out(output, hidden[1, 2]))
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_gradients_are_those_of_the_full_distribution():
    output = make_output()
    hidden = torch.randn(40, D_MODEL, dtype=torch.float64, requires_grad=True)
    target = torch.randint(FIRST, WORDS + FIRST, (40,))
    wanted = [hidden, *output.parameters()]
    ours = torch.autograd.grad(output(hidden, target).sum(), wanted)
    full = torch.autograd.grad(-output.get_log_prob(hidden).gather(1, target[:, None]).sum(), wanted)
    for a, b in zip(ours, full):
        torch.testing.assert_close(a, b)


def test_without_cutoffs_it_is_one_softmax():
    output = make_output(cutoffs=())
    hidden, target = torch.randn(5, D_MODEL, dtype=torch.float64), torch.tensor([2, 3, 9, 23, 24])
    logits = hidden @ output.embedding.weight.T + output.bias
    torch.testing.assert_close(output(hidden, target), nn.functional.cross_entropy(logits, target - FIRST, reduction="none"))


def test_the_loss_of_half_precision_is_summed_in_float32():
    output = make_output().bfloat16()
    hidden, target = torch.randn(9, D_MODEL), torch.arange(9) + FIRST
    loss = output(hidden.bfloat16(), target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, output.float()(hidden.bfloat16().float(), target), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("cutoffs", [(7, 23), (7, 30), (11, 7), (0, 7), (7, 7)])
def test_cutoffs_that_do_not_divide_the_vocabulary_are_refused(cutoffs):
    with pytest.raises(ValueError, match=f"cutoffs: .* {WORDS} words .*{','.join(map(str, cutoffs))}"):
        AdaptiveOutput(nn.Embedding(WORDS, D_MODEL), cutoffs, FIRST)

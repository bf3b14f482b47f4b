"""The authors' stopping rule."""

import math

import pytest

from fwp_fairseq.tasks.stopping import StoppingRule


def run(losses, **settings):
    """Number of evaluations until the rule stops, and why."""
    rule = StoppingRule(**{"threshold": 0.001, "patience": 10, **settings})
    for number, loss in enumerate(losses, start=1):
        reason = rule.observe(100 * number, loss)
        if reason is not None:
            return number, reason, rule.summary()
    return len(losses), None, rule.summary()


def test_stops_at_the_threshold():
    assert run([0.5, 0.001])[:2] == (2, "threshold")
    assert run([0.5, 0.0011])[1] is None


def test_stops_after_more_than_ten_evaluations_without_a_new_best():
    assert run([0.3] + [0.4] * 10)[1] is None
    number, reason, summary = run([0.3] + [0.4] * 20)
    assert (number, reason) == (12, "patience")
    assert summary == {"best_loss": 0.3, "best_update": 100, "last_loss": 0.4}


def test_an_equal_loss_is_no_new_best():
    assert run([0.3] * 30)[0] == 12


def test_nan_is_never_a_best_and_counts_as_an_evaluation_without_one():
    number, reason, summary = run([math.nan] * 30)
    assert (number, reason) == (11, "patience")  # the authors' diverged cells end after 1,100 updates too
    assert math.isnan(summary["best_loss"]) and math.isnan(summary["last_loss"])
    number, reason, summary = run([math.nan, 0.4] + [math.nan] * 30)
    assert (number, summary["best_loss"], summary["best_update"]) == (13, 0.4, 200)


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_resumed_rule_goes_on_as_if_never_interrupted(cut):
    losses = [0.5, 0.4, 0.3] + [0.35] * 20
    rule = StoppingRule(0.001, 10)
    for number in range(cut):
        rule.observe(number, losses[number])
    resumed = StoppingRule(**rule.state_dict())
    while resumed.observe(len(resumed.losses), losses[len(resumed.losses)]) is None:
        pass
    assert len(resumed.losses) == 14

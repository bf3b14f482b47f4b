"""The sliding window against a loop that predicts every token on its own."""

import pytest
import torch

from fwp_fairseq.models.language_model import FastWeightLanguageModel, LanguageModelConfig
from fwp_fairseq.sliding_window import score_text, window_batches

SYMBOLS = range(25)


def tiny_model(**parts):
    torch.manual_seed(1)
    cfg = LanguageModelConfig(**{"d_model": 16, "layers": 2, "heads": 2, "d_ffn": 20, "cutoffs": "5,12", **parts})
    model = FastWeightLanguageModel(cfg, SYMBOLS).double()
    for parameter in model.parameters():  # far from uniform, so that a wrong position shows
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def text(count):
    return torch.randint(2, 25, (count,), generator=torch.Generator().manual_seed(2))


def one_by_one(model, tokens, window, stride):
    model.eval()
    last_start = len(tokens) - 1 - window
    total = 0.0
    for target in range(1, len(tokens)):
        steps = max(0, -(-(target - window) // stride))  # the first window that reaches the target
        start = min(steps * stride, last_start)
        inputs = tokens[None, start : start + window]
        log_prob = model.get_normalized_probs(model(src_tokens=inputs), log_probs=True)
        total -= log_prob[0, target - 1 - start, tokens[target]].item()
    return total


@pytest.mark.parametrize(
    "parts", [{}, {"attention": "softmax"}, {"feature_map": "favor", "update_rule": "sum", "attention_normalization": "output"}]
)
@pytest.mark.parametrize("count, window, stride", [(40, 8, 1), (40, 8, 3), (41, 8, 8), (9, 8, 1), (23, 7, 5)])
def test_score_is_that_of_predicting_each_token_alone(parts, count, window, stride):
    model, tokens = tiny_model(**parts), text(count)
    score = score_text(model, tokens, window, stride, batch=5)
    assert score.tokens == count - 1
    assert score.loss == pytest.approx(one_by_one(model, tokens, window, stride), rel=1e-9)


@pytest.mark.parametrize("count, window, stride", [(40, 8, 1), (43, 8, 3), (41, 8, 8), (9, 8, 8), (50, 20, 7)])
def test_scored_parts_follow_each_other_through_the_text(count, window, stride):
    tokens = torch.arange(count)
    scored = [row[-n:] for windows, n in window_batches(tokens, window, stride, batch=4) for row in windows]
    assert torch.equal(torch.cat(scored), tokens[1:])


def test_output_layer_runs_only_where_it_counts():
    model, seen = tiny_model(), []
    model.decoder.adaptive_softmax.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    score_text(model, text(60), window=16, stride=1, batch=8)
    assert sum(seen) == 59


def test_progress_tells_of_every_prediction():
    news = []
    score_text(tiny_model(), text(30), window=8, stride=2, batch=3, progress=lambda score, new: news.append((score.tokens, new)))
    assert [sum(new for _, new in news[: i + 1]) for i in range(len(news))] == [tokens for tokens, _ in news]
    assert news[-1][0] == 29


@pytest.mark.parametrize(
    "window, stride, words", [(40, 1, "window: .* 39 .* 40"), (0, 1, "window: .* 0"), (8, 0, "stride: .* 8, got 0"), (8, 9, "stride: .* got 9")]
)
def test_windows_that_do_not_fit_are_refused(window, stride, words):
    with pytest.raises(ValueError, match=words):
        score_text(tiny_model(), text(40), window, stride)

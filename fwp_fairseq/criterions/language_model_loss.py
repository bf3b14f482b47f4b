"""Cross entropy of a language model with a tied adaptive output, every token that is not padding counted.

fairseq's `adaptive_loss` ignores word 1 of every cluster, since it compares numbers inside a cluster with the symbol
of padding.
"""

import math

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics


@register_criterion("language_model_loss", dataclass=FairseqDataclass)
class LanguageModelLoss(FairseqCriterion):
    """Sum over tokens; the trainer divides by their number. Logged in bits a token, as fairseq does."""

    @classmethod
    def build_criterion(cls, cfg, task):
        return cls(task)

    def forward(self, model, sample):
        hidden, extra = model(**sample["net_input"])
        sample["state_after"] = extra["state"]  # for tasks that carry it on
        counts = sample["target"] != self.padding_idx
        target = sample["target"][counts]
        loss = model.decoder.adaptive_softmax(hidden[counts], target).sum()
        logging = {
            "loss": loss.detach(),
            "ntokens": target.numel(),
            "nsentences": sample["target"].shape[0],
            "sample_size": target.numel(),
        }
        return loss, target.numel(), logging

    @staticmethod
    def reduce_metrics(logging_outputs):
        tokens = sum(log["ntokens"] for log in logging_outputs)
        bits = utils.item(sum(log["loss"] for log in logging_outputs)) / math.log(2)
        metrics.log_scalar("loss", bits / max(tokens, 1), tokens, round=6)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["loss"].avg))

    @staticmethod
    def logging_outputs_can_be_summed():
        return True

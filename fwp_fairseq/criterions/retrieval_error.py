"""Squared error of retrieved values, as the synthetic experiments count it: 1/2 |v - v_hat|^2 a query."""

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics


@register_criterion("retrieval_error", dataclass=FairseqDataclass)
class RetrievalError(FairseqCriterion):
    """Mean over queries in training; in evaluation the mean of the means of batches of the training size (that of an
    update, however it is divided), since that is the figure the authors log."""

    def __init__(self, batch_size: int, task):
        super().__init__(task)
        self.batch_size = batch_size

    @classmethod
    def build_criterion(cls, cfg, task):
        return cls(task.sequences_per_update, task)

    def forward(self, model, sample):
        errors = self.query_errors(model, sample)
        if model.training:
            loss, sample_size = errors.sum(), errors.numel()
            logged = loss.item()
        else:
            loss = torch.stack([batch.mean() for batch in errors.split(self.batch_size)]).mean()
            logged, sample_size = loss.item(), 1
        pairs = sample["net_input"]["keys"].numel()
        logging = {"loss": logged, "sample_size": sample_size, "nqueries": errors.numel(), "ntokens": pairs}
        return loss, sample_size, logging

    def query_errors(self, model, sample):
        """One number for every query that is not padding, sequence by sequence."""
        net_input, target = sample["net_input"], sample["target"]
        if model.training or not model.redraws_features:
            return squared_errors(model(**net_input), target)[target >= 0]
        # Each batch of queries is one forward, and so has random features of its own. It runs over a few
        # neighbouring sequences, which are computed once however many of their queries are in it.
        rows, columns = (target >= 0).nonzero(as_tuple=True)
        errors = []
        for row, column in zip(rows.split(self.batch_size), columns.split(self.batch_size), strict=True):
            first, last = int(row[0]), int(row[-1]) + 1
            predicted = model(**{name: tensor[first:last] for name, tensor in net_input.items()})
            errors.append(squared_errors(predicted, target[first:last])[row - first, column])
        return torch.cat(errors)

    @staticmethod
    def reduce_metrics(logging_outputs):
        sample_size = sum(log["sample_size"] for log in logging_outputs)
        metrics.log_scalar("loss", sum(log["loss"] for log in logging_outputs) / sample_size, sample_size, round=6)
        metrics.log_scalar("nqueries", sum(log["nqueries"] for log in logging_outputs), weight=0, round=0)

    @staticmethod
    def logging_outputs_can_be_summed():
        return True


def squared_errors(predicted, target):
    """`1/2 |predicted - one_hot(target)|^2`: (B, Q, S), (B, Q) -> (B, Q); any number where the target is padding."""
    one_hot = F.one_hot(target.clamp(min=0), predicted.shape[-1])
    return 0.5 * (predicted - one_hot).square().sum(-1)

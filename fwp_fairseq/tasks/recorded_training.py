"""What the tasks of the tables share: divergence as an outcome, a count of what validation saw, and `training.json`.

`class SomeTask(RecordedTraining, SomeFairseqTask)`; the configuration has the fields of `RecordedTrainingConfig`.
"""

import hashlib
import logging
import math
from dataclasses import dataclass, field
from typing import List, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from omegaconf import II

from fwp_fairseq import compat, interruption
from fwp_fairseq.data.token_stream import DataFolderError
from fwp_fairseq.tasks import processes
from fwp_fairseq.tasks.divergence import DivergenceRule
from fwp_fairseq.tasks.plain_errors import in_plain_words
from fwp_fairseq.tasks.training_log import TrainingLog, read_training_log

logger = logging.getLogger(__name__)


@dataclass
class RecordedTrainingConfig(FairseqDataclass):
    experiment: str = field(default="", metadata={"help": "table of the record"})
    setting: str = field(default="", metadata={"help": "sizes and data, for the record"})
    row: str = field(default="", metadata={"help": "row of the table, for the record"})
    divergence_span: int = field(
        default=1000, metadata={"help": "diverged after so many updates in a row with a loss above the first one"}
    )
    seed: int = II("common.seed")
    fp16: bool = II("common.fp16")
    max_update: int = II("optimization.max_update")
    max_valid_steps: Optional[int] = II("dataset.max_valid_steps")
    save_dir: str = II("checkpoint.save_dir")
    max_tokens: Optional[int] = II("dataset.max_tokens")
    batch_size: Optional[int] = II("dataset.batch_size")
    update_freq: List[int] = II("optimization.update_freq")
    world_size: int = II("distributed_training.distributed_world_size")


class RecordedTraining:
    """Mixed into a fairseq task, ahead of it.

    A task sets `to_evaluate` where a validation begins, names in `counted` the sum of a criterion's logging output
    that must come to it, and gives its `dictionaries`.
    """

    counted = "ntokens"
    loss_unit = math.log(2)  # fairseq logs bits, the records have nats

    def __init__(self, cfg, *args, **kwargs):
        super().__init__(cfg, *args, **kwargs)
        self.cfg = cfg  # tasks of fairseq's old kind have it as `args` alone
        self.rule = DivergenceRule(cfg.divergence_span)
        self.log = TrainingLog()
        self.diverged = None  # the reason, once there is one
        self.ended = False  # whether training.json is to say so as soon as the checkpoint is there
        self.validating = False
        self.evaluated = self.to_evaluate = 0

    def begin_training(self) -> None:
        interruption.listen()
        if processes.is_first():
            logger.info(size_of_an_update(self.cfg))

    # What the run of wandb says, see `wandb_run.install`.

    @property
    def run_name(self) -> tuple:
        return self.cfg.experiment, self.cfg.row, self.cfg.setting

    @property
    def trained_tokens(self) -> int:
        return self.log.trained_tokens

    def state_size(self, model) -> int | None:
        return None

    def begin_valid_epoch(self, epoch, model):
        """FAVOR+'s random features are each process's own in training; what is evaluated and saved are the first's."""
        super().begin_valid_epoch(epoch, model)
        for buffer in model.buffers():
            processes.of_the_first(buffer)

    def begin_validation(self, to_evaluate: int) -> None:
        self.evaluated, self.to_evaluate = 0, to_evaluate

    @in_plain_words
    def build_model(self, cfg, from_checkpoint=False):
        # FAVOR+'s features underflow where keys are long. Denormal numbers, which change no digit here, make every
        # step several times slower.
        torch.set_flush_denormal(getattr(cfg, "feature_map", None) == "favor")
        return super().build_model(cfg, from_checkpoint)

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        self.validating = False
        loss, sample_size, logging_output = super().train_step(
            sample, model, criterion, optimizer, update_num, ignore_grad
        )
        # fairseq's trainer raises on NaN and writes crash.pt; here it is an outcome. With fp16 an infinite gradient
        # only means that the loss scale was too high, which fairseq mends.
        parameters = [p for p in model.parameters() if p.grad is not None]
        finite = torch.isfinite(logging_output["loss"])
        if not self.cfg.fp16:
            finite = finite & torch.isfinite(torch.stack(torch._foreach_norm([p.grad for p in parameters]))).all()
        if not processes.on_all(finite):
            for parameter in parameters:
                parameter.grad.zero_()
            logging_output["loss"] = torch.zeros_like(logging_output["loss"])
            self.stop_diverged(update_num, "the loss or a gradient is not finite")
        logging_output["signalled"] = int(interruption.signalled())  # summed over the processes, so that all agree
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs, criterion):
        """Called with the sums over all processes, after every update and every validation batch."""
        super().reduce_metrics(logging_outputs, criterion)
        tokens = sum(int(log["ntokens"]) for log in logging_outputs)
        if self.validating:
            self.evaluated += sum(int(log[self.counted]) for log in logging_outputs)
        elif tokens and self.diverged is None:
            loss = sum(float(log["loss"]) for log in logging_outputs)
            self.log.trained(loss, tokens)
            reason = self.rule.observe(loss / tokens)
            if reason is not None:
                self.stop_diverged(self.log.trained_updates, reason)
            elif sum(int(log["signalled"]) for log in logging_outputs):
                interruption.stop()
                compat.request_stop("a signal came")

    def stop_diverged(self, update, reason):
        if self.diverged is None:
            self.diverged = reason
            compat.request_stop(f"diverged at update {update}: {reason}")
            self.ended = True

    def valid_step(self, sample, model, criterion):
        self.validating = True
        return super().valid_step(sample, model, criterion)

    def post_validate(self, model, stats, agg):
        if self.evaluated != self.to_evaluate and self.cfg.max_valid_steps is None:
            what = {"ntokens": "tokens", "nsentences": "sentences"}[self.counted]
            raise RuntimeError(f"validation scored {self.evaluated} {what} of {self.to_evaluate}")
        if self.diverged is not None:
            return
        update = int(stats["num_updates"])
        loss = float(stats["loss"]) * self.loss_unit
        self.log.validated(update, loss)
        if not math.isfinite(loss):
            self.stop_diverged(update, f"the validation loss is {loss}")
        else:
            self.ended = update >= self.cfg.max_update
            self.write_log("running", update)

    def checkpoint_saved(self, update) -> None:
        """What training.json says to have ended has its last checkpoint, wherever the process was killed."""
        if self.ended:
            self.write_log("finished" if self.diverged is None else "diverged", update)

    def was_trained_before(self, update) -> None:
        """A kill may have come between the last checkpoint and the word that it is the last."""
        log = read_training_log(self.cfg.save_dir)
        if log is None or log["status"] == "running":
            self.write_log("finished", update)

    def write_log(self, status, update):
        if processes.is_first():
            self.log.write(self.cfg, status, self.diverged, update)

    # fairseq saves what these return with a checkpoint, and hands it back on resuming.

    def get_checkpoint_dict(self):
        return {type(self).__name__: self.checkpoint_state()}

    @in_plain_words
    def set_checkpoint_dict(self, state):
        self.check_dictionary(state["dictionary"])
        processes.check_batches(state["batches"], self.batch_layout(), self.cfg.save_dir)
        self.rule = DivergenceRule(**{**state["rule"], "span": self.cfg.divergence_span})
        self.log = TrainingLog.from_state_dict(state["log"])

    def checkpoint_state(self) -> dict:
        return {
            "rule": self.rule.state_dict(),
            "log": self.log.state_dict(),
            "dictionary": dictionary_digest(*self.dictionaries),
            "batches": self.batch_layout(),
        }

    def batch_layout(self) -> dict:
        """What the place in an epoch, a number of batches, means something for."""
        return {
            "max_tokens": self.cfg.max_tokens,
            "batch_size": self.cfg.batch_size,
            "update_freq": list(self.cfg.update_freq),
            "processes": self.cfg.world_size,
        }

    def check_dictionary(self, digest):
        if digest != dictionary_digest(*self.dictionaries):
            raise DataFolderError(
                f"task.data={self.cfg.data}: its dictionary is not the one that the checkpoint was trained with; give the "
                "data of that training, or to train anew another checkpoint.save_dir"
            )


def size_of_an_update(cfg) -> str:
    """What an update takes in over all processes, for the log: it is what must stay the same on other machines."""
    batch, unit = (cfg.batch_size, "rows") if cfg.batch_size else (cfg.max_tokens, "tokens at most")
    accumulated, world = cfg.update_freq[0], cfg.world_size
    length = f" of {cfg.tokens_per_sample} tokens" if cfg.batch_size and "tokens_per_sample" in cfg else ""
    total = batch * accumulated * world
    return f"an update has {total:,} {unit}{length}: {batch:,} a batch, {accumulated} accumulated, processes: {world}"


def begin_recorded_training(cfg) -> None:
    """What a task does first of all; `ValueError` where the settings or the checkpoint to go on from are not usable."""
    if cfg.divergence_span < 1:
        raise ValueError(f"task.divergence_span: must be >= 1, got {cfg.divergence_span}")
    compat.begin_job()


def dictionary_digest(*dictionaries) -> str:
    """sha256 of the symbols in order: tells whether a checkpoint and a data folder belong together."""
    symbols = "\n\n".join("\n".join(dictionary.symbols) for dictionary in dictionaries)
    return hashlib.sha256(symbols.encode()).hexdigest()

"""Language modelling over contiguous streams (section 6.3 of the paper), with divergence as an outcome.

`fairseq-hydra-train --config-dir configs/wikitext103 --config-name small row=delta task.data=data/wikitext103/data-bin`.
Perplexities are computed, and the record written, by `fwp-eval-lm` from the checkpoint. How the training itself went
stands in `training.json` beside the checkpoints.
"""

import glob
import hashlib
import logging
import math
import os
import zipfile
from dataclasses import dataclass, field
from typing import List, Optional

import torch
from fairseq.data import Dictionary, iterators
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II

from fwp_fairseq import compat
from fwp_fairseq.data.token_stream import DataFolderError, TokenStream, load_tokens
from fwp_fairseq.tasks.carried_state import CarriedState
from fwp_fairseq.tasks.divergence import DivergenceRule
from fwp_fairseq.tasks.training_log import TrainingLog

logger = logging.getLogger(__name__)

ORDERS = ("stream", "blocks")


@dataclass
class FastWeightLanguageModelingConfig(LanguageModelingConfig):
    order: ChoiceEnum(ORDERS) = field(
        default="stream",
        metadata={"help": "training batches: rows are contiguous streams in order, or fairseq's shuffled blocks"},
    )
    carry_state: bool = field(
        default=False,
        metadata={"help": "carry the state along each row of the stream, in training and evaluation: no context is cut"},
    )
    tokens_per_sample_eval: Optional[int] = field(
        default=None, metadata={"help": "segment length in evaluation (default: as in training)"}
    )
    experiment: str = field(default="table_wikitext103", metadata={"help": "table of the record"})
    setting: str = field(default="small", metadata={"help": "small, medium or mini, for the record"})
    row: str = field(default="delta", metadata={"help": "row of the table, for the record"})
    divergence_span: int = field(
        default=1000, metadata={"help": "diverged after so many updates in a row with a loss above the first one"}
    )
    update_freq: List[int] = II("optimization.update_freq")
    max_update: int = II("optimization.max_update")
    train_subset: str = II("dataset.train_subset")
    max_valid_steps: Optional[int] = II("dataset.max_valid_steps")
    world_size: int = II("distributed_training.distributed_world_size")
    fp16: bool = II("common.fp16")
    save_dir: str = II("checkpoint.save_dir")
    wandb_project: Optional[str] = II("common.wandb_project")


@register_task("fwp_language_modeling", dataclass=FastWeightLanguageModelingConfig)
class FastWeightLanguageModelingTask(LanguageModelingTask):
    """Feeds the streams, checks that validation saw every token, and ends a training that has diverged."""

    @classmethod
    def setup_task(cls, cfg, **kwargs):
        check_settings(cfg)
        check_last_checkpoint(cfg.save_dir)
        compat.begin_job()
        if cfg.wandb_project:
            os.environ["WANDB_RUN_GROUP"] = f"{cfg.experiment}/{cfg.setting}"
            os.environ["WANDB_NAME"] = f"{cfg.row}/{cfg.setting}/seed{cfg.seed}"
        dictionary = load_dictionary(cfg.data)
        return cls(cfg, dictionary, dictionary)

    def __init__(self, cfg, dictionary, output_dictionary=None, targets=None):
        super().__init__(cfg, dictionary, output_dictionary, targets)
        self.rule = DivergenceRule(cfg.divergence_span)
        self.log = TrainingLog()
        self.diverged = None  # the reason, once there is one
        self.validating = False
        self.evaluated = self.to_evaluate = 0
        self.carried = CarriedState()
        self.carried_in_validation = CarriedState()

    # Data

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        if split == self.args.train_subset and self.args.order == "blocks":
            return super().load_dataset(split, epoch, combine, **kwargs)
        tokens = load_tokens(self.args.data, split, self.dictionary)
        segment = self.args.tokens_per_sample
        if split != self.args.train_subset:
            segment = self.args.tokens_per_sample_eval or segment
        self.datasets[split] = TokenStream(tokens, segment, self.dictionary.pad())

    def get_batch_iterator(self, dataset, max_sentences=None, num_shards=1, shard_id=0, epoch=1, **kwargs):
        """fairseq's for blocks; for a stream one iterator that never shuffles.

        The rows of a stream are the sequences of one update: batch size × accumulated batches × processes. Batches
        are dealt out round the processes, so each row stays with one process and one place of the accumulation.
        """
        if not isinstance(dataset, TokenStream):
            return super().get_batch_iterator(
                dataset, max_sentences=max_sentences, num_shards=num_shards, shard_id=shard_id, epoch=epoch, **kwargs
            )
        if not max_sentences:
            raise ValueError("dataset.batch_size: streams need a number of rows, got none; max_tokens is for blocks")
        rows = max_sentences * num_shards
        if dataset is self.datasets.get(self.args.train_subset):
            rows *= self.args.update_freq[0]
        else:
            self.evaluated, self.to_evaluate = 0, dataset.predictions
        return iterators.EpochBatchIterator(
            dataset=dataset,
            collate_fn=dataset.collater,
            batch_sampler=dataset.batches(max_sentences, rows),
            num_shards=num_shards,
            shard_id=shard_id,
            num_workers=kwargs.get("num_workers", 0),
            epoch=epoch,
            buffer_size=kwargs.get("data_buffer_size", 0),
            disable_shuffling=True,
        )

    def build_model(self, cfg, from_checkpoint=False):
        # FAVOR+'s features underflow where keys are long. Denormal numbers, which change no digit here, make every
        # step several times slower.
        torch.set_flush_denormal(getattr(cfg, "feature_map", None) == "favor")
        model = super().build_model(cfg, from_checkpoint)
        if self.args.carry_state and not model.state_is_bounded:
            raise ValueError(
                "task.carry_state: the state of model.attention=softmax grows with the text; take fast_weights, or "
                "model._name=fwp_transformer_xl"
            )
        return model

    # Training

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        self.validating = False
        self.hand_state_over(self.carried, sample)
        loss, sample_size, logging_output = super().train_step(
            sample, model, criterion, optimizer, update_num, ignore_grad
        )
        self.keep_state(self.carried, sample)
        # fairseq's trainer raises on NaN and writes crash.pt; here it is an outcome. With fp16 an infinite gradient
        # only means that the loss scale was too high, which fairseq mends.
        parameters = [p for p in model.parameters() if p.grad is not None]
        finite = torch.isfinite(logging_output["loss"])
        if not self.args.fp16:
            finite = finite & torch.isfinite(torch.stack(torch._foreach_norm([p.grad for p in parameters]))).all()
        if not on_all_processes(finite):
            for parameter in parameters:
                parameter.grad.zero_()
            logging_output["loss"] = torch.zeros_like(logging_output["loss"])
            self.stop_diverged(update_num, "the loss or a gradient is not finite")
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs, criterion):
        """Called with the sums over all processes, after every update and every validation batch."""
        super().reduce_metrics(logging_outputs, criterion)
        tokens = sum(int(log["ntokens"]) for log in logging_outputs)
        if self.validating:
            self.evaluated += tokens
        elif tokens and self.diverged is None:
            loss = sum(float(log["loss"]) for log in logging_outputs)
            self.log.trained(loss, tokens)
            reason = self.rule.observe(loss / tokens)
            if reason is not None:
                self.stop_diverged(self.log.trained_updates, reason)

    def stop_diverged(self, update, reason):
        if self.diverged is None:
            self.diverged = reason
            compat.request_stop(f"diverged at update {update}: {reason}")
            self.write_log("diverged", update)

    def valid_step(self, sample, model, criterion):
        self.validating = True
        self.hand_state_over(self.carried_in_validation, sample)
        result = super().valid_step(sample, model, criterion)
        self.keep_state(self.carried_in_validation, sample)
        return result

    def hand_state_over(self, carried, sample):
        if self.args.carry_state:
            sample["net_input"]["state"] = carried.before(sample)

    def keep_state(self, carried, sample):
        if self.args.carry_state:
            carried.after(sample, sample["state_after"])

    def post_validate(self, model, stats, agg):
        if self.evaluated != self.to_evaluate and self.args.max_valid_steps is None:
            raise RuntimeError(f"validation scored {self.evaluated} tokens of {self.to_evaluate}")
        if self.diverged is not None:
            return
        update = int(stats["num_updates"])
        loss = float(stats["loss"]) * math.log(2)
        self.log.validated(update, loss)
        if not math.isfinite(loss):
            self.stop_diverged(update, f"the validation loss is {loss}")
        else:
            self.write_log("finished" if update >= self.args.max_update else "running", update)

    def write_log(self, status, update):
        if is_first_process():
            self.log.write(self.args, status, self.diverged, update)

    # fairseq saves what these return with a checkpoint, and hands it back on resuming.

    def prepare_checkpoint(self):
        if self.args.carry_state:
            self.carried.collect()

    def get_checkpoint_dict(self):
        state = {
            "rule": self.rule.state_dict(),
            "log": self.log.state_dict(),
            "dictionary": dictionary_digest(self.dictionary),
            "stream": self.stream_layout(),
            "carried": self.carried.state_dict(),
        }
        return {type(self).__name__: state}

    def stream_layout(self) -> dict:
        """What the place in an epoch means something for. Processes may be fewer or more, at the same rows."""
        rows = (self.args.batch_size or 0) * self.args.update_freq[0] * self.args.world_size
        return {
            "order": str(self.args.order),
            "rows": rows,
            "update_freq": self.args.update_freq[0],
            "tokens_per_sample": self.args.tokens_per_sample,
            "carry_state": self.args.carry_state,
        }

    def set_checkpoint_dict(self, state):
        if state["dictionary"] != dictionary_digest(self.dictionary):
            raise DataFolderError(
                f"task.data={self.args.data}: its dict.txt is not the one of the checkpoint in {self.args.save_dir}; "
                "give the data it was trained on, or another checkpoint.save_dir"
            )
        if state["stream"] != self.stream_layout():
            raise ValueError(
                f"the checkpoint in {self.args.save_dir} was trained with {state['stream']}, this run has "
                f"{self.stream_layout()}: it would go on at a wrong place of the text; resume with the same, or give "
                "another checkpoint.save_dir"
            )
        self.rule = DivergenceRule(**{**state["rule"], "span": self.args.divergence_span})
        self.log = TrainingLog.from_state_dict(state["log"])
        self.carried.load_state_dict(state["carried"], self.args.batch_size)


def load_dictionary(folder):
    """The dictionary of a data folder; DataFolderError where there is none."""
    path = os.path.join(folder or "", "dict.txt")
    if not folder or not os.path.isfile(path):
        raise DataFolderError(
            f"task.data={folder}: no dict.txt there; run data_prep/wikitext103.py or data_prep/mini_lm.py and give "
            "their data-bin folder"
        )
    dictionary = Dictionary.load(path)
    if dictionary.pad() != 1:
        raise DataFolderError(f"{path}: expected fairseq's symbols <s>, <pad>, </s>, <unk> in front")
    return dictionary


def dictionary_digest(dictionary) -> str:
    """sha256 of the symbols in order: tells whether a checkpoint and a data folder belong together."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()


def check_settings(cfg):
    """`ValueError` naming the field, the value and what is allowed."""
    if cfg.tokens_per_sample < 1:
        raise ValueError(f"task.tokens_per_sample: must be >= 1, got {cfg.tokens_per_sample}")
    if cfg.tokens_per_sample_eval is not None and cfg.tokens_per_sample_eval < 1:
        raise ValueError(f"task.tokens_per_sample_eval: must be >= 1, got {cfg.tokens_per_sample_eval}")
    if cfg.carry_state and cfg.order != "stream":
        raise ValueError(f"task.carry_state: needs task.order=stream, got {cfg.order}: blocks do not follow each other")
    if cfg.divergence_span < 1:
        raise ValueError(f"task.divergence_span: must be >= 1, got {cfg.divergence_span}")
    if len(cfg.update_freq) != 1:
        raise ValueError(
            f"optimization.update_freq: one number, since it decides the rows of the stream, got {cfg.update_freq}"
        )


def check_last_checkpoint(folder):
    """`ValueError` where the checkpoint that a run would go on from was cut off. fairseq copies it into its place, so
    a kill at that moment leaves a part of it."""
    last = os.path.join(folder, "checkpoint_last.pt")
    if os.path.exists(last) and not zipfile.is_zipfile(last):
        others = sorted(glob.glob(os.path.join(folder, "checkpoint_*_*.pt")), key=os.path.getmtime)
        remedy = f"copy {others[-1]} over it" if others else "delete it to start again"
        raise ValueError(f"{last} is no whole checkpoint, it was cut off while it was written: {remedy}")


def on_all_processes(condition) -> bool:
    """Whether a boolean tensor is true in every process, the same answer in each."""
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        votes = condition.to(torch.int32)
        torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MIN)
        return bool(votes)
    return bool(condition)


def is_first_process() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0

"""Synthetic retrieval (section 6.1 of the paper): train on key-value pairs, stop by the authors' rule, write a record.

One run is one cell of a figure: `fairseq-hydra-train --config-dir configs/synthetic --config-name capacity curve=elu
task.num_keys=40`. The run ends by itself, and its record is then in `results/runs/`.
"""

import logging
import math
import time
from dataclasses import dataclass, field
from typing import Any, List, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, OmegaConf

from fwp_fairseq import compat, records, wandb_run
from fwp_fairseq.data.retrieval import MAX_EVAL_QUERIES, RetrievalEvaluationSet, RetrievalTrainingSet
from fwp_fairseq.models.retrieval import check_parts
from fwp_fairseq.tasks import processes
from fwp_fairseq.tasks.plain_errors import in_plain_words
from fwp_fairseq.tasks.retrieval_settings import (
    EXPERIMENTS,
    cell_name,
    check_record,
    check_settings,
    eval_length,
    follows_the_paper,
    sequences_per_update,
    subsets,
    train_length,
)
from fwp_fairseq.tasks.stopping import StoppingRule

logger = logging.getLogger(__name__)


@dataclass
class SyntheticRetrievalConfig(FairseqDataclass):
    experiment: str = field(default="figure_capacity", metadata={"help": f"one of {', '.join(EXPERIMENTS)}"})
    row: str = field(default="elu", metadata={"help": "name of the curve, for the record"})
    num_keys: int = field(default=20, metadata={"help": "S: number of keys, and of values"})
    repetition: bool = field(
        default=False,
        metadata={"help": "draw keys and values with replacement, 2S pairs in training (the update-rule setting)"},
    )
    train_length: Optional[int] = field(
        default=None, metadata={"help": "pairs a training sequence; by default S, or 2S with repetition"}
    )
    eval_length: Optional[int] = field(default=None, metadata={"help": "pairs an evaluation sequence; by default S"})
    eval_sequences: int = field(default=20, metadata={"help": "fresh sequences an evaluation"})
    stop_loss: float = field(default=0.001, metadata={"help": "stop at an evaluation loss of this or less"})
    stop_patience: int = field(default=10, metadata={"help": "stop after more than this many evaluations without a best"})
    results_dir: Optional[str] = field(default="results", metadata={"help": "where records go; null writes none"})
    seed: int = II("common.seed")
    batch_size: int = II("dataset.batch_size")
    max_update: int = II("optimization.max_update")
    validate_interval_updates: int = II("dataset.validate_interval_updates")
    valid_subset: str = II("dataset.valid_subset")
    disable_validation: bool = II("dataset.disable_validation")
    lr: List[float] = II("optimization.lr")
    clip_norm: float = II("optimization.clip_norm")
    optimizer: Any = II("optimizer")
    lr_scheduler: Any = II("lr_scheduler")
    fp16: bool = II("common.fp16")
    bf16: bool = II("common.bf16")
    update_freq: List[int] = II("optimization.update_freq")
    world_size: int = II("distributed_training.distributed_world_size")
    save_dir: str = II("checkpoint.save_dir")


@register_task("synthetic_retrieval", dataclass=SyntheticRetrievalConfig)
class SyntheticRetrievalTask(FairseqTask):
    """Draws the data, decides when to stop, and writes the record."""

    loss_unit = 1.0

    @classmethod
    @in_plain_words
    def setup_task(cls, cfg: SyntheticRetrievalConfig, **kwargs):
        check_settings(cfg)
        compat.begin_job()
        if cfg.results_dir is not None:
            records.check_writable(cfg.results_dir)
            records.record_path(cfg.results_dir, cfg.experiment, cfg.row, cfg.seed, cell_name(cfg))
        return cls(cfg)

    def __init__(self, cfg: SyntheticRetrievalConfig):
        super().__init__(cfg)
        self.rule = StoppingRule(cfg.stop_loss, cfg.stop_patience)
        self.train_length_losses = []
        self.trained_tokens = 0  # pairs written
        self.previous_seconds = 0.0
        self.started = time.monotonic()
        self.evaluated = {}
        self.model_cfg = None
        self.diverged = False

    # What is evaluated: sequences of S pairs decide; those of the training length are recorded beside them.

    @property
    def sequences_per_update(self) -> int:
        return sequences_per_update(self.cfg)

    @property
    def subsets(self) -> tuple:
        return subsets(self.cfg)

    def load_dataset(self, split, combine=False, **kwargs):
        cfg = self.cfg
        if split == "train":
            # One update more than is trained: at the end of an epoch a run that is extended would start over.
            self.datasets[split] = RetrievalTrainingSet(
                (cfg.max_update + 1) * self.sequences_per_update,
                train_length(cfg),
                cfg.num_keys,
                cfg.repetition,
                seed=3 * cfg.seed,
            )
        else:
            number = ("valid", "valid_train_length").index(split)
            self.datasets[split] = RetrievalEvaluationSet(
                cfg.eval_sequences,
                (eval_length(cfg), train_length(cfg))[number],
                cfg.num_keys,
                cfg.repetition,
                seed=3 * cfg.seed + 1 + number,  # no sequence of one purpose is drawn for another
                processes=cfg.world_size,
            )

    @in_plain_words
    def build_model(self, cfg, from_checkpoint=False):
        check_parts(cfg)
        self.model_cfg = cfg
        if self.cfg.results_dir is not None:
            check_record(self.cfg, cfg)
        # FAVOR+'s features underflow where the keys are long. Denormal numbers, which change no digit here, make
        # every step ten times slower.
        torch.set_flush_denormal(cfg.feature_map == "favor")
        return super().build_model(cfg, from_checkpoint)

    # What the run of wandb says, see `wandb_run.install`.

    @property
    def run_name(self) -> tuple:
        return self.cfg.experiment, self.cfg.row, cell_name(self.cfg)

    def state_size(self, model) -> int:
        return model.state_size(train_length(self.cfg))

    @property
    def target_dictionary(self):
        return None

    def max_positions(self):
        return None

    def filter_indices_by_size(self, indices, dataset, max_positions=None, ignore_invalid_inputs=False):
        return indices  # every sequence has the same length

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        loss, sample_size, logging_output = super().train_step(
            sample, model, criterion, optimizer, update_num, ignore_grad
        )
        # fairseq's trainer raises on NaN and writes crash.pt; here a loss that becomes NaN is an outcome.
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        finite = torch.isfinite(torch.stack(torch._foreach_norm(gradients))).all()
        if not processes.on_all(finite & math.isfinite(logging_output["loss"])):
            for gradient in gradients:
                gradient.zero_()
            logging_output["loss"] = 0.0
            if not self.diverged:
                self.diverged = True
                self.finish(model, update_num, "diverged")
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs, criterion):
        """Called with the sums over all processes, after every update and every validation batch."""
        super().reduce_metrics(logging_outputs, criterion)
        if criterion.training:
            self.trained_tokens += sum(int(log["ntokens"]) for log in logging_outputs)

    def begin_valid_epoch(self, epoch, model):
        self.evaluated = {}
        for subset in self.subsets:
            self.datasets[subset].begin_evaluation(model.num_updates)

    def valid_step(self, sample, model, criterion):
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        # what there is to ask, counted from the keys themselves
        expected = sum(min(len(set(keys)), MAX_EVAL_QUERIES) for keys in sample["net_input"]["keys"].tolist())
        if logging_output["nqueries"] != expected:
            raise RuntimeError(f"evaluated {logging_output['nqueries']} queries of {expected}")
        self.evaluated[self.subsets[len(self.evaluated)]] = logging_output["loss"]
        return loss, sample_size, logging_output

    def post_validate(self, model, stats, agg):
        if self.diverged or len(self.evaluated) < len(self.subsets):
            return
        # FAVOR+'s random features differ between processes, and so do the losses: all go by those of the first
        losses = torch.tensor(list(self.evaluated.values()), dtype=torch.float64, device=next(model.parameters()).device)
        losses = dict(zip(self.evaluated, processes.of_the_first(losses).tolist(), strict=True))
        update = int(stats["num_updates"])
        reason = self.rule.observe(update, losses["valid"])
        message = "%s %s: loss %.4f at update %d"
        logger.info(message, self.cfg.row, cell_name(self.cfg), self.rule.losses[-1], update, extra={"sweep": "progress"})
        if len(self.subsets) > 1:
            self.train_length_losses.append(losses["valid_train_length"])
        if reason is None and update >= self.cfg.max_update:
            reason = "max_update"
        if reason is not None:
            self.finish(model, update, reason)

    def finish(self, model, update, reason):
        """Write the record and end the training."""
        compat.request_stop(reason)
        cfg = self.cfg
        metrics = self.rule.summary()
        if reason == "diverged":
            metrics["last_loss"] = math.nan
        curves = {"updates": self.rule.updates, "loss": self.rule.losses}
        if len(self.subsets) > 1:
            numbers = [loss for loss in self.train_length_losses if not math.isnan(loss)]
            metrics["best_loss_train_length"] = min(numbers, default=math.nan)
            metrics["last_loss_train_length"] = (
                self.train_length_losses[-1] if self.train_length_losses and reason != "diverged" else math.nan
            )
            curves["loss_train_length"] = self.train_length_losses
        metrics["stop_reason"] = reason
        last = metrics["last_loss"]
        if cfg.results_dir is not None and processes.is_first():
            path = self.write_record(model, update, reason, metrics, curves)
            logger.info("wrote %s", path)
            wandb_run.add_record(path)
        message = "%s %s: last loss %.4f after %d updates (%s)"
        logger.info(message, cfg.row, cell_name(cfg), last, update, reason, extra={"sweep": "finished"})

    def write_record(self, model, update, reason, metrics, curves):
        cfg = self.cfg
        record = records.new_record(
            experiment=cfg.experiment,
            row=cfg.row,
            cell=cell_name(cfg),
            seed=cfg.seed,
            scale="paper" if follows_the_paper(cfg, self.model_cfg, reason) else "mini",
            status="diverged" if math.isnan(metrics["last_loss"]) else "finished",
            metrics=metrics,
            curves=curves,
            updates=update,
            wall_seconds=self.previous_seconds + time.monotonic() - self.started,
            parameters=sum(p.numel() for p in model.parameters()),
            state_size=self.state_size(model),
            device=device_name(next(model.parameters()).device),
            config={**kept_settings(cfg), "model": plain(self.model_cfg)},
        )
        return records.write_record(cfg.results_dir, record)

    # fairseq saves what these return with a checkpoint, and hands it back on resuming.

    def get_checkpoint_dict(self):
        state = {
            "rule": self.rule.state_dict(),
            "train_length_losses": self.train_length_losses,
            "trained_tokens": self.trained_tokens,
            "batches": self.batch_layout(),
            "seconds": self.previous_seconds + time.monotonic() - self.started,
        }
        return {type(self).__name__: state}

    @in_plain_words
    def set_checkpoint_dict(self, state):
        processes.check_batches(state["batches"], self.batch_layout(), self.cfg.save_dir)
        self.rule = StoppingRule(**state["rule"])
        self.train_length_losses = state["train_length_losses"]
        self.trained_tokens = state["trained_tokens"]
        self.previous_seconds = state["seconds"]

    def batch_layout(self) -> dict:
        cfg = self.cfg
        return {"batch_size": cfg.batch_size, "update_freq": list(cfg.update_freq), "processes": cfg.world_size}


def plain(cfg) -> dict:
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if OmegaConf.is_config(cfg) else dict(vars(cfg))


def kept_settings(cfg) -> dict:
    """What determines the numbers, and nothing that tells the machine."""
    task = {name: value for name, value in plain(cfg).items() if name not in ("results_dir", "save_dir")}
    return {"task": task, **{name: task.pop(name) for name in ("optimizer", "lr_scheduler")}}


def device_name(device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

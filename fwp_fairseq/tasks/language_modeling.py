"""Language modelling over contiguous streams (section 6.3 of the paper), with divergence as an outcome.

`fairseq-hydra-train --config-dir configs/wikitext103 --config-name small row=delta task.data=data/wikitext103/data-bin`.
Perplexities are computed, and the record written, by `fwp-eval-lm` from the checkpoint. How the training itself went
stands in `training.json` beside the checkpoints.
"""

import logging
import os
from dataclasses import dataclass, field
from typing import List, Optional

from fairseq.data import Dictionary, iterators
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II

from fwp_fairseq.data.token_stream import DataFolderError, TokenStream, load_tokens
from fwp_fairseq.models.tempered import TemperedEnsemble
from fwp_fairseq.tasks.carried_state import CarriedState
from fwp_fairseq.tasks.plain_errors import in_plain_words
from fwp_fairseq.tasks.recorded_training import RecordedTraining, RecordedTrainingConfig, begin_recorded_training

logger = logging.getLogger(__name__)

ORDERS = ("stream", "blocks")


@dataclass
class FastWeightLanguageModelingConfig(RecordedTrainingConfig, LanguageModelingConfig):
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
    update_freq: List[int] = II("optimization.update_freq")
    train_subset: str = II("dataset.train_subset")
    world_size: int = II("distributed_training.distributed_world_size")


@register_task("fwp_language_modeling", dataclass=FastWeightLanguageModelingConfig)
class FastWeightLanguageModelingTask(RecordedTraining, LanguageModelingTask):
    """Feeds the streams, in training and in validation."""

    @classmethod
    @in_plain_words
    def setup_task(cls, cfg, **kwargs):
        check_settings(cfg)
        begin_recorded_training(cfg)
        dictionary = load_dictionary(cfg.data)
        return cls(cfg, dictionary, dictionary)

    def __init__(self, cfg, dictionary, output_dictionary=None, targets=None):
        super().__init__(cfg, dictionary, output_dictionary, targets)
        self.carried = CarriedState()
        self.carried_in_validation = CarriedState()

    @property
    def dictionaries(self):
        return (self.dictionary,)

    # Data

    @in_plain_words
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
        are dealt out round the processes, so each row stays with one process and one place of the accumulation. The
        rows of validation are as many times its batch size: where that is divided as the training's is, its loss does
        not depend on the division either.
        """
        if not isinstance(dataset, TokenStream):
            return super().get_batch_iterator(
                dataset, max_sentences=max_sentences, num_shards=num_shards, shard_id=shard_id, epoch=epoch, **kwargs
            )
        if not max_sentences:
            raise ValueError("dataset.batch_size: streams need a number of rows, got none; max_tokens is for blocks")
        rows = max_sentences * self.args.update_freq[0] * num_shards
        if dataset is not self.datasets.get(self.args.train_subset):
            self.begin_validation(dataset.predictions)
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

    @in_plain_words
    def build_model(self, cfg, from_checkpoint=False):
        model = super().build_model(cfg, from_checkpoint)
        if self.args.carry_state and not model.state_is_bounded:
            raise ValueError(
                "task.carry_state: the state of model.attention=softmax grows with the text; take fast_weights, or "
                "model._name=fwp_transformer_xl"
            )
        return model

    def state_size(self, model):
        return model.state_size(self.args.tokens_per_sample_eval or self.args.tokens_per_sample)

    # Generation by fairseq-generate and fairseq-interactive

    def build_generator(self, models, *args, **kwargs):
        return super().build_generator(TemperedEnsemble(models), *args, **kwargs)

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Texts go on from the prefix, or the source, up to its first end of line, which the generator would take for
        the end of the text."""
        eos = self.dictionary.eos()
        if prefix_tokens is None:
            prefix_tokens = sample["net_input"]["src_tokens"]
            if (prefix_tokens[:, 0] == eos).all():
                prefix_tokens = prefix_tokens[:, 1:]
        ended = (prefix_tokens == eos).cumsum(dim=1) > 0
        prefix_tokens = prefix_tokens.masked_fill(ended, self.dictionary.pad())
        return super().inference_step(generator, models, sample, prefix_tokens, constraints)

    def get_interactive_tokens_and_lengths(self, lines, encode_fn):
        words = {word for line in lines for word in encode_fn(line).split()}
        unknown = sorted(words - set(self.dictionary.indices))
        if unknown:
            logger.warning("read as %s, not in dict.txt: %s", self.dictionary.unk_word, " ".join(unknown))
        return super().get_interactive_tokens_and_lengths(lines, encode_fn)

    # Training

    def train_step(self, sample, *args, **kwargs):
        self.hand_state_over(self.carried, sample)
        result = super().train_step(sample, *args, **kwargs)
        self.keep_state(self.carried, sample)
        return result

    def valid_step(self, sample, model, criterion):
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

    # fairseq saves what these return with a checkpoint, and hands it back on resuming.

    def prepare_checkpoint(self):
        if self.args.carry_state:
            self.carried.collect()

    def checkpoint_state(self):
        return {**super().checkpoint_state(), "carried": self.carried.state_dict()}

    def batch_layout(self) -> dict:
        """As for every task, but for streams: processes may be fewer or more, at the same rows."""
        if self.args.order != "stream":
            return super().batch_layout()
        rows = (self.args.batch_size or 0) * self.args.update_freq[0] * self.args.world_size
        return {
            "rows": rows,
            "update_freq": self.args.update_freq[0],
            "tokens_per_sample": self.args.tokens_per_sample,
            "carry_state": self.args.carry_state,
        }

    @in_plain_words
    def set_checkpoint_dict(self, state):
        super().set_checkpoint_dict(state)
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


def check_settings(cfg):
    """`ValueError` naming the field, the value and what is allowed."""
    if cfg.tokens_per_sample < 1:
        raise ValueError(f"task.tokens_per_sample: must be >= 1, got {cfg.tokens_per_sample}")
    if cfg.tokens_per_sample_eval is not None and cfg.tokens_per_sample_eval < 1:
        raise ValueError(f"task.tokens_per_sample_eval: must be >= 1, got {cfg.tokens_per_sample_eval}")
    if cfg.carry_state and cfg.order != "stream":
        raise ValueError(f"task.carry_state: needs task.order=stream, got {cfg.order}: blocks do not follow each other")
    if len(cfg.update_freq) != 1:
        raise ValueError(
            f"optimization.update_freq: one number, since it decides the rows of the stream, got {cfg.update_freq}"
        )

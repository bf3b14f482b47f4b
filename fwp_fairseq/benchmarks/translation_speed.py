"""The measurement of `fwp-bench translation`: translation models that take training steps and translate in turn."""

import statistics
import time
from types import SimpleNamespace

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator

from fwp_fairseq import records
from fwp_fairseq.benchmarks.measure import seconds
from fwp_fairseq.benchmarks.recording import environment, machine, rounded, say
from fwp_fairseq.benchmarks.training_step import TrainingStep, adam, share_weights
from fwp_fairseq.benchmarks.translation import SENTENCE
from fwp_fairseq.models.translation import FastWeightTranslationModel, TranslationModelConfig, transformer_config
from fwp_fairseq.models.translation_architectures import ROWS, SETTINGS

EXPERIMENT = "bench_translation"
FAIRSEQ = "fairseq"  # fairseq's own transformer, which no class of ours has a part in
SUBWORDS = {"base": 32_000, "mini": 4_000}
CLIP_NORM, LABEL_SMOOTHING, ADAM = 0.0, 0.1, {"betas": (0.9, 0.98), "eps": 1e-9, "lr": 1e-4}
BEAM, LENGTH_PENALTY = 4, 0.6
TRAINING = "training"


def measure(options, started):
    """The run record of what the options of `fwp-bench translation` ask for.

    Curves: `length` of the translations, and for each row, a number for each of them, `<row>/ms_per_token`, one step
    of the search for all hypotheses, and `<row>/tokens_per_second`, of the best ones; the rounds as `<row>/<length>/ms`
    and `<row>/training/ms`. Metrics: `<row>/training_tokens_per_second`, of the target.
    """
    device, dictionary = torch.device(options.device), subwords(SUBWORDS[options.setting])
    positions = max(1024, max(options.lengths) + 1)
    models = {row: build(row, options.setting, dictionary, positions).to(device) for row in (FAIRSEQ, *options.rows)}
    optimizer = adam(share_weights(models.values()), **ADAM)
    criterion = LabelSmoothedCrossEntropyCriterion(task_of(dictionary), False, LABEL_SMOOTHING)
    batch = random_sentences(dictionary, options.tokens // SENTENCE, device)
    sources = random_sentences(dictionary, options.sentences, device)
    calls = {}
    for row, model in models.items():
        calls[row, TRAINING] = TrainingStep(model, criterion, optimizer, CLIP_NORM, batch)
    for length in options.lengths:
        for row, model in models.items():
            calls[row, length] = Translating(model, dictionary, length, sources)

    for row in models:
        say(f"warm-up: {row}")
        calls[row, TRAINING]()
        calls[row, options.lengths[0]]()
    times = {place: [] for place in calls}
    for number in range(options.rounds):
        for (row, what), call in calls.items():
            times[row, what].append(seconds(call, device))
            work = TRAINING if what == TRAINING else f"{what} tokens"
            say(f"round {number + 1} of {options.rounds}: {row}, {work}: {1000 * times[row, what][-1]:.0f} ms")

    medians = {place: statistics.median(rounds) for place, rounds in times.items()}
    metrics, curves = {}, {"length": list(options.lengths)}
    for row in models:
        metrics[f"{row}/training_tokens_per_second"] = rounded(batch["ntokens"] / medians[row, TRAINING])
        for length in options.lengths:
            per_token = medians[row, length] / (length + 1)  # the end of the sentence is a token too
            curves.setdefault(f"{row}/ms_per_token", []).append(rounded(1000 * per_token))
            curves.setdefault(f"{row}/tokens_per_second", []).append(rounded(options.sentences / per_token))
    for (row, what), rounds in times.items():
        curves[f"{row}/{what}/ms"] = [rounded(1000 * taken) for taken in rounds]
    name, processor = machine(device)
    return records.new_record(
        experiment=EXPERIMENT,
        row=name,
        cell=options.setting,
        seed=1,
        scale="bench",
        metrics=metrics,
        curves=curves,
        updates=options.rounds,
        wall_seconds=time.monotonic() - started,
        parameters=sum(weight.numel() for weight in models[FAIRSEQ].parameters()),
        device=processor,
        config={
            **SETTINGS[options.setting],
            "setting": options.setting,
            "rows": list(models),
            "subwords": SUBWORDS[options.setting],
            "tokens": batch["ntokens"],
            "sentence": SENTENCE,
            "sentences": options.sentences,
            "beam": BEAM,
            "device": options.device,
            "threads": torch.get_num_threads(),
            "rounds": options.rounds,
            "environment": environment(),
        },
    )


class Translating:
    """Beam search in which all hypotheses get `length` tokens and their end; calling it is what is timed."""

    def __init__(self, model, dictionary, length, sample):
        self.sample = sample
        self.search = SequenceGenerator(
            [model], dictionary, BEAM, max_len_a=0, max_len_b=length, min_len=length, len_penalty=LENGTH_PENALTY
        )

    def __call__(self):
        """The hypotheses of each sentence, best first."""
        self.search.model.eval()
        return self.search(self.sample)


def build(row, setting, dictionary, positions):
    """A translation model with random weights that can read and write `positions` tokens."""
    torch.manual_seed(1)
    parts = ROWS["transformer" if row == FAIRSEQ else row]
    cfg = TranslationModelConfig(**SETTINGS[setting], **parts, max_target_positions=positions)
    if row == FAIRSEQ:
        return TransformerModelBase.build_model(transformer_config(cfg), task_of(dictionary))
    return FastWeightTranslationModel.build_model(cfg, task_of(dictionary))


def task_of(dictionary):
    """What models and criteria ask of a task."""
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def subwords(count):
    dictionary = Dictionary()
    for number in range(count):
        dictionary.add_symbol(f"{number}")
    return dictionary


def random_sentences(dictionary, count, device):
    """A batch of the task: pairs of sentences of `SENTENCE` tokens with their end, none of them padded."""
    generator = torch.Generator().manual_seed(1)
    shape = (2, count, SENTENCE)
    source, target = torch.randint(dictionary.nspecial, len(dictionary), shape, generator=generator).to(device)
    source[:, -1] = target[:, -1] = dictionary.eos()
    return {
        "net_input": {
            "src_tokens": source,
            "src_lengths": torch.full((count,), SENTENCE, device=device),
            "prev_output_tokens": target.roll(1, dims=1),
        },
        "target": target,
        "ntokens": target.numel(),
    }

"""The measurement of `fwp-bench training`: rows of the language models that take training steps in turn."""

import statistics
import time
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary

from fwp_fairseq import records
from fwp_fairseq.benchmarks import BenchError
from fwp_fairseq.benchmarks.measure import seconds
from fwp_fairseq.benchmarks.recording import environment, machine, rounded, say
from fwp_fairseq.benchmarks.step_profile import PARTS, profile
from fwp_fairseq.benchmarks.training_step import TrainingStep, adam, share_weights
from fwp_fairseq.criterions.language_model_loss import LanguageModelLoss
from fwp_fairseq.models.decoder import FIRST_SYMBOL
from fwp_fairseq.models.language_model import FastWeightLanguageModel, LanguageModelConfig
from fwp_fairseq.models.language_model_architectures import ROWS, SETTINGS

EXPERIMENT = "bench_training"
SIZES = {"small": SETTINGS["wt103_small"], "medium": SETTINGS["wt103_medium"], "mini": SETTINGS["mini"]}
DICTIONARY = {"small": 267_737, "medium": 267_737, "mini": 2_004}  # symbols, of which fairseq adds two or four
CLIP_NORM, ADAM = 0.25, {"betas": (0.9, 0.999), "eps": 1e-8, "lr": 2.5e-4}
PROFILED = "delta"


def measure(options, started):
    """The run record of what the options of `fwp-bench training` ask for.

    Curves: `length`, `words`, the words of a step at each of them, and for each row `<row>/words_per_second` and
    `<row>/peak_mb`, a number for each length, and the rounds as `<row>/<length>/ms`. Metrics: `profile/<part>/ms`.
    """
    device = torch.device(options.device)
    models = {row: build(row, options.setting).to(device) for row in options.rows}
    optimizer = adam(share_weights(models.values()), **ADAM)
    criterion = LanguageModelLoss(SimpleNamespace(target_dictionary=Dictionary()))
    steps = {}
    for length in options.lengths:
        sample = random_text(DICTIONARY[options.setting], round(options.tokens / length), length, device)
        for row, model in models.items():
            steps[row, length] = TrainingStep(model, criterion, optimizer, CLIP_NORM, sample)

    peak_mb = {place: memory(step, place, device) for place, step in steps.items()}
    times = {place: [] for place in steps}
    for number in range(options.rounds):
        for place, step in steps.items():
            times[place].append(seconds(step, device))
            say(f"round {number + 1} of {options.rounds}: {place[0]}, L = {place[1]}: {1000 * times[place][-1]:.0f} ms")
    parts = {}
    if PROFILED in models:
        say(f"where the time of a step of {PROFILED} goes")
        parts = profile(steps[PROFILED, options.lengths[0]], device, options.rounds)

    words = {length: steps[options.rows[0], length].sample["ntokens"] for length in options.lengths}
    curves = {"length": list(options.lengths), "words": list(words.values())}
    for (row, length), rounds in times.items():
        speed = rounded(words[length] / statistics.median(rounds))
        curves.setdefault(f"{row}/words_per_second", []).append(speed)
        curves.setdefault(f"{row}/peak_mb", []).append(rounded(peak_mb[row, length]))
    for (row, length), rounds in times.items():
        curves[f"{row}/{length}/ms"] = [rounded(1000 * taken) for taken in rounds]
    name, processor = machine(device)
    return records.new_record(
        experiment=EXPERIMENT,
        row=name,
        cell=options.setting,
        seed=1,
        scale="bench",
        metrics={f"profile/{part}/ms": rounded(1000 * parts[part]) for part in PARTS if part in parts},
        curves=curves,
        updates=options.rounds,
        wall_seconds=time.monotonic() - started,
        parameters=models[options.rows[0]].parameter_count,
        device=processor,
        config={
            **SIZES[options.setting],
            "setting": options.setting,
            "rows": list(options.rows),
            "dictionary": DICTIONARY[options.setting],
            "device": options.device,
            "threads": torch.get_num_threads(),
            "rounds": options.rounds,
            "environment": environment(),
        },
    )


def build(row, setting):
    """A language model with random weights; its dictionary need only have a length."""
    torch.manual_seed(1)
    return FastWeightLanguageModel(LanguageModelConfig(**SIZES[setting], **ROWS[row]), range(DICTIONARY[setting]))


def memory(step, place, device):
    """Peak memory of a step in MB, its first one: what is compiled or allocated once comes ahead of the timed ones."""
    row, length = place
    try:
        peak = step.peak_bytes(device) / 2**20
    except torch.OutOfMemoryError:  # of a GPU
        raise BenchError(f"--tokens: a step of {row} at L = {length} does not fit into the GPU's memory; give fewer")
    say(f"memory: {row}, L = {length}: {peak:.0f} MB")
    return peak


def random_text(dictionary, sequences, length, device):
    """A batch of the task: words drawn by the Zipf-Mandelbrot law, numbered by falling frequency as in a dictionary."""
    ranks = torch.arange(1, dictionary - FIRST_SYMBOL + 1, dtype=torch.float64)
    words = torch.multinomial(
        (ranks + 2.7) ** -1.2, sequences * (length + 1), replacement=True, generator=torch.Generator().manual_seed(1)
    )
    symbols = (words + FIRST_SYMBOL).view(sequences, length + 1).to(device)
    return {
        "net_input": {"src_tokens": symbols[:, :-1], "src_lengths": torch.full((sequences,), length, device=device)},
        "target": symbols[:, 1:],
        "nsentences": sequences,
        "ntokens": sequences * length,
    }

"""The measurement of `fwp-bench decode`: models of the same sizes, a text that grows, and tokens timed on its way."""

import statistics
import time
from dataclasses import dataclass

import torch

from fwp_fairseq import records
from fwp_fairseq.benchmarks.measure import seconds
from fwp_fairseq.benchmarks.recording import environment, machine, rounded, say
from fwp_fairseq.models.language_model import FastWeightLanguageModel, LanguageModelConfig
from fwp_fairseq.models.transformer_xl import TransformerXL, TransformerXLConfig

EXPERIMENT = "bench_decode"
SIZES = {"d_model": 256, "heads": 8, "d_ffn": 2048}  # of the medium models; a layer of theirs
WORDS = 2_000
MEM_LEN = 384
SEGMENT = 512  # tokens of the text before that are read at once
IN_TURN = 6  # tokens that a model generates before it is the next one's turn
FIRST_POSITION = 64

MODELS = {
    "delta": {"feature_map": "elu", "update_rule": "delta"},
    "linear": {
        "feature_map": "elu",
        "update_rule": "sum",
        "sum_normalization": False,
        "attention_normalization": "output",
    },
    "dpfp_delta": {"feature_map": "dpfp", "update_rule": "delta"},
    "transformer_xl": {"mem_len": MEM_LEN},
    "softmax": {"attention": "softmax"},
}


def measure(options, started):
    """The run record of what the options of `fwp-bench decode` ask for.

    Curves: `position`, the last token of each span of tokens that was timed, and for each model `<model>/ms`, the
    median over the span, and `<model>/state`, the numbers kept behind it.
    """
    device = torch.device(options.device)
    decodings = {name: Decoding(name, options.layers, device) for name in MODELS}
    for decoding in decodings.values():
        for _ in range(IN_TURN):  # warm-up
            decoding.generate()
        decoding.go_to(Place(decoding.token))
    positions = spans(options.length, options.tokens)
    places = {}  # (position, model): the text up to there, and the times of its tokens
    for position in positions:
        say(f"reading up to token {position:,}")
        for name, decoding in decodings.items():
            decoding.read_until(position - options.tokens)
            places[position, name] = decoding.place(), []
    for first in range(0, options.tokens, IN_TURN):
        turn = min(IN_TURN, options.tokens - first)
        say(f"tokens {first + 1} to {first + turn} of {options.tokens} at each position")
        for (position, name), (place, times) in places.items():
            decoding = decodings[name]
            decoding.go_to(place)
            times += [1000 * seconds(decoding.generate, device) for _ in range(turn)]
            places[position, name] = decoding.place(), times
    curves = {"position": positions}
    for (position, name), (place, times) in places.items():
        curves.setdefault(f"{name}/ms", []).append(rounded(statistics.median(times)))
        curves.setdefault(f"{name}/state", []).append(state_size(place.state))
    row, processor = machine(device)
    return records.new_record(
        experiment=EXPERIMENT,
        row=row,
        seed=1,
        scale="bench",
        metrics={f"{name}/growth": rounded(curves[f"{name}/ms"][-1] / curves[f"{name}/ms"][0]) for name in decodings},
        curves=curves,
        updates=options.tokens,
        wall_seconds=time.monotonic() - started,
        parameters=0,
        device=processor,
        config={
            **SIZES,
            "layers": options.layers,
            "words": WORDS,
            "mem_len": MEM_LEN,
            "parameters": {name: decoding.model.parameter_count for name, decoding in decodings.items()},
            "device": options.device,
            "threads": torch.get_num_threads(),
            "tokens": options.tokens,
            "environment": environment(),
        },
    )


def spans(length, tokens):
    """The last positions of the spans of `tokens` tokens that are timed: the first tokens, then about every doubling."""
    ends, position = [tokens], FIRST_POSITION
    while position + tokens <= length:
        if position >= ends[-1] + tokens:
            ends.append(position)
        position *= 2
    return [*ends, length] if length >= ends[-1] + tokens else ends


@dataclass(frozen=True)
class Place:
    """Where a text has come to: the next input (1, 1), the model's state and the number of tokens before."""

    token: torch.Tensor
    state: list | None = None
    position: int = 0


class Decoding:
    """A model with random weights that reads a text and goes on with it."""

    def __init__(self, name, layers, device):
        torch.manual_seed(1)
        parts, words = {**MODELS[name], **SIZES, "layers": layers}, range(WORDS)
        if name == "transformer_xl":
            model = TransformerXL(TransformerXLConfig(**parts), words)
        else:
            model = FastWeightLanguageModel(LanguageModelConfig(positional_encoding=False, **parts), words)
        self.model = model.to(device).eval()
        self.generator = torch.Generator().manual_seed(1)
        self.device = device
        self.go_to(Place(self.words(1)))

    def place(self):
        return Place(self.token, self.state, self.position)

    def go_to(self, place):
        self.token, self.state, self.position = place.token, place.state, place.position

    def words(self, length):
        return torch.randint(2, WORDS, (1, length), generator=self.generator).to(self.device)

    @torch.inference_mode()
    def generate(self):
        """One token: what is timed."""
        hidden, extra = self.model(self.token, state=self.state)
        self.state = extra["state"]
        self.token = self.model.decoder.adaptive_softmax.get_log_prob(hidden[:, -1]).argmax(-1, keepdim=True)
        self.position += 1

    @torch.inference_mode()
    def read_until(self, position):
        while self.position < position:
            segment = min(SEGMENT, position - self.position)
            self.state = self.model(self.words(segment), state=self.state)[1]["state"]
            self.position += segment


def state_size(state):
    """Numbers in a state."""
    return sum(tensor.numel() for entry in state for tensor in (entry if isinstance(entry, tuple) else (entry,)))

"""The measurement of `fwp-bench decode`: models of the same sizes, a text that grows, and tokens timed on its way."""

import statistics
import time

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
        decoding.restart()
    positions = spans(options.length, options.tokens)
    curves = {"position": positions}
    for position in positions:
        for decoding in decodings.values():
            decoding.read_until(position - options.tokens)
        times = {name: [] for name in decodings}
        for first in range(0, options.tokens, IN_TURN):
            for name, decoding in decodings.items():
                for _ in range(min(IN_TURN, options.tokens - first)):
                    times[name].append(1000 * seconds(decoding.generate, device))
        for name, decoding in decodings.items():
            curves.setdefault(f"{name}/ms", []).append(rounded(statistics.median(times[name])))
            curves.setdefault(f"{name}/state", []).append(decoding.state_size)
        medians = ", ".join(f"{name} {curves[f'{name}/ms'][-1]:g}" for name in decodings)
        say(f"token {position:,}, ms: {medians}")
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


class Decoding:
    """A model with random weights that reads and generates; `position` tokens so far."""

    def __init__(self, name, layers, device):
        torch.manual_seed(1)
        parts, words = {**MODELS[name], **SIZES, "layers": layers}, range(WORDS)
        if name == "transformer_xl":
            model = TransformerXL(TransformerXLConfig(**parts), words)
        else:
            model = FastWeightLanguageModel(LanguageModelConfig(positional_encoding=False, **parts), words)
        self.model = model.to(device).eval()
        self.text = torch.Generator().manual_seed(1)
        self.device = device
        self.restart()

    def restart(self):
        self.position, self.state = 0, None
        self.token = self.words(1)

    def words(self, length):
        return torch.randint(2, WORDS, (1, length), generator=self.text).to(self.device)

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

    @property
    def state_size(self):
        entries = [entry if isinstance(entry, tuple) else (entry,) for entry in self.state]
        return sum(tensor.numel() for entry in entries for tensor in entry)

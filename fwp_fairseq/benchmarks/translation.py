"""Tokens per second of training and beam search: the rows of the translation models beside fairseq's own transformer.

Models of the same sizes on random sentences. Training is a full step: forward and backward pass, label-smoothed loss,
clipping, Adam. Generation is fairseq's beam search with a beam of 4, and every hypothesis is forced to the same target
length, so that the time of a token can be set against it: with fast weights it does not grow. All models take a step
and translate to every length in turn, round after round, and the median counts: so whatever else the machine does hits
all of them.
"""

import time

from fwp_fairseq.benchmarks import BenchError, recording
from fwp_fairseq.benchmarks.ops import list_of, whole_numbers
from fwp_fairseq.cli.arguments import whole_number

HELP = "tokens per second of training and generating translations, beside fairseq's own transformer"
ROWS = (
    "transformer", "linear", "performer_64", "performer_256", "performer_512", "dpfp_256", "dpfp_512", "elu_delta",
    "dpfp_256_delta",
)  # fmt: skip
SENTENCE = 32  # tokens of a source, and of a target in training
TOKENS_PER_STEP = {"cpu": 512, "cuda": 25_600}  # that of the paper's setting is 25,000
SENTENCES = {"cpu": 2, "cuda": 64}


def add_arguments(parser):
    recording.add_arguments(parser, "bench_translation")
    parser.add_argument("--threads", type=whole_number, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument("--setting", choices=("base", "mini"), default="base",
                        help="sizes of the models (default: base)")  # fmt: skip
    parser.add_argument("--rows", type=list_of(ROWS), default=ROWS, metavar="A,B",
                        help=f"of {', '.join(ROWS)}; fairseq's own is always there (default: all)")  # fmt: skip
    parser.add_argument("--tokens", type=whole_number, metavar="N",
                        help=f"target tokens of a training step, in sentences of {SENTENCE} "
                        "(default: 512 on a CPU, 25600 on a GPU)")  # fmt: skip
    parser.add_argument("--sentences", type=whole_number, metavar="N",
                        help="sentences translated at once (default: 2 on a CPU, 64 on a GPU)")  # fmt: skip
    parser.add_argument("--lengths", type=whole_numbers, default=(16, 64, 256), metavar="N,N",
                        help="tokens of the translations (default: 16,64,256)")  # fmt: skip
    parser.add_argument("--rounds", type=whole_number, default=3, metavar="N",
                        help="times that each is timed (default: 3)")  # fmt: skip


def run(options) -> int:
    """Measure, print the table and write the record."""
    options.tokens = options.tokens or TOKENS_PER_STEP[options.device]
    options.sentences = options.sentences or SENTENCES[options.device]
    if options.tokens < SENTENCE:
        raise BenchError(f"--tokens: a step needs a sentence of {SENTENCE} tokens at least, got {options.tokens}")
    recording.check(options)
    import torch

    from fwp_fairseq.benchmarks.translation_speed import measure
    from fwp_fairseq.reports.bench_translation import TranslationRun, run_markdown

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    started = time.monotonic()
    record = measure(options, started)
    print(run_markdown(TranslationRun.from_record(record)))
    recording.write(options, record, "bench_translation")
    return 0

"""Time of one generated token against its position: fast weights, whose state keeps its size, beside softmax attention
with a growing cache and a Transformer-XL with a memory.

Whole language models of the same sizes with random weights, batch 1; a token is one pass through the model, the
probabilities of all words, and the likeliest word as the next input. The text before each position, random words, is
read in segments and the states there are kept. Then every model generates a few tokens at every position in turn, round
after round, and the median of the tokens counts: so whatever else the machine does hits all of them. The
cache of softmax attention is extended by concatenation, which copies it, as fairseq's own incremental attention does.
"""

import time

from fwp_fairseq.benchmarks import BenchError, recording
from fwp_fairseq.cli.arguments import whole_number

HELP = "time of a generated token and size of the state, against the position in the text"


def add_arguments(parser):
    recording.add_arguments(parser, "bench_decode")
    parser.add_argument("--threads", type=whole_number, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument("--length", type=whole_number, default=20_000, metavar="N",
                        help="position of the last token (default: 20000)")  # fmt: skip
    parser.add_argument("--tokens", type=whole_number, default=24, metavar="N",
                        help="tokens timed at each position (default: 24)")  # fmt: skip
    parser.add_argument("--layers", type=whole_number, default=4, metavar="N",
                        help="layers of every model; those of the paper have 16 (default: 4)")  # fmt: skip


def run(options) -> int:
    """Measure, print the table and write the record."""
    if options.length < options.tokens:
        raise BenchError(f"--length: must be at least the {options.tokens} tokens timed at each position, got {options.length}")
    recording.check(options)
    import torch

    from fwp_fairseq.benchmarks.decoding import measure
    from fwp_fairseq.reports.bench_decode import DecodeRun, run_markdown

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    started = time.monotonic()
    record = measure(options, started)
    print(run_markdown(DecodeRun.from_record(record)))
    recording.write(options, record, "bench_decode")
    return 0

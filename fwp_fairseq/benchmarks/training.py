"""Words per second and peak memory of training: the rows of the language models side by side, at several lengths.

Whole models of the paper's sizes with its vocabulary, on random words: fast weights and softmax attention are timed
for a full training step, which is the forward and backward pass, clipping and Adam. A step has the same number of words
at every length. Words are drawn by the Zipf-Mandelbrot law, p(rank) ~ (rank + 2.7)^-1.2, so that the clusters of the
adaptive softmax are as busy as on text. All rows take a step at all lengths in turn, round after round, and the median
counts: so whatever else the machine does hits all of them. Ahead of the rounds each memory is measured. Where delta is
among the rows, its step is taken apart at the shortest of the lengths.
"""

import time

from fwp_fairseq.benchmarks import BenchError, recording
from fwp_fairseq.benchmarks.ops import list_of, whole_numbers
from fwp_fairseq.cli.arguments import whole_number

HELP = "words per second and memory of training, row by row and length by length"
REFERENCE = "transformer"  # the row that the others are set against
ROWS = (REFERENCE, "linear", "delta", "performer", "performer_delta", "dpfp_sum", "dpfp_delta")
DEFAULT_ROWS = (REFERENCE, "linear", "delta", "performer", "dpfp_delta")
SETTINGS = ("medium", "small", "mini")
WORDS_PER_STEP = {"cpu": 4096, "cuda": 24_576}  # the paper's medium setting has 56 x 384 = 21,504


def add_arguments(parser):
    recording.add_arguments(parser, "bench_training")
    parser.add_argument("--threads", type=whole_number, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument("--setting", choices=SETTINGS, default="medium", help="sizes of the models (default: medium)")
    parser.add_argument("--rows", type=list_of(ROWS), default=DEFAULT_ROWS, metavar="A,B",
                        help=f"of {', '.join(ROWS)} (default: {','.join(DEFAULT_ROWS)})")  # fmt: skip
    parser.add_argument("--lengths", type=whole_numbers, default=(384, 1024, 4096), metavar="N,N",
                        help="words of a sequence (default: 384,1024,4096)")  # fmt: skip
    parser.add_argument("--tokens", type=whole_number, metavar="N",
                        help="words of a step, the same at all lengths as far as whole sequences allow "
                        "(default: 4096 on a CPU, 24576 on a GPU)")  # fmt: skip
    parser.add_argument("--rounds", type=whole_number, default=3, metavar="N", help="steps timed of each (default: 3)")


def run(options) -> int:
    """Measure, print the table and write the record."""
    options.tokens = options.tokens or WORDS_PER_STEP[options.device]
    if REFERENCE not in options.rows:
        got = ",".join(options.rows)
        raise BenchError(f"--rows: must have {REFERENCE}, which the others are set against, got {got}")
    if options.tokens < max(options.lengths):
        raise BenchError(
            f"--tokens: a step needs a sequence of each of the --lengths, and one has {max(options.lengths)} words, "
            f"got {options.tokens}"
        )
    recording.quiet_profiler()
    recording.check(options)
    import torch

    from fwp_fairseq.benchmarks.training_speed import measure
    from fwp_fairseq.reports.bench_training import TrainingRun, run_markdown
    from fwp_fairseq.reports.published import paper_throughput

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    started = time.monotonic()
    record = measure(options, started)
    print(run_markdown(TrainingRun.from_record(record), paper_throughput(options.results or "results")))
    recording.write(options, record, "bench_training")
    return 0

"""Time and memory of the fast weight rules, forward and backward together, side by side with causal softmax attention
and, where they are installed, with fla-core's chunked delta rule in plain torch and pytorch-fast-transformers' linear
attention.

All contenders of a shape run in turn, round after round, next to a matrix product; the median of the rounds counts. So
whatever else the machine does hits all of them, and their ratios can be relied on. Ahead of the rounds each output is
compared with that of the first contender of its rule. Memory is that of the tensors made in one pass, inputs not
counted.
"""

import argparse
import time

from fwp_fairseq.benchmarks import recording
from fwp_fairseq.cli.arguments import whole_number

HELP = "time and memory of the fast weight rules, next to attention and other libraries"
BACKENDS = ("torch", "triton", "reference", "sdpa", "fla", "fast-transformers")
RULES = ("sum", "delta")
DTYPES = ("float32", "bfloat16", "float16")
TABLE = ((8, 8, 256, 16, 16), (4, 8, 384, 32, 32), (2, 8, 2048, 64, 64), (1, 8, 4096, 128, 64))
# One sequence of four heads: attention at the greatest length still takes seconds, not minutes, on two cores.
SWEEP = tuple((1, 4, 2**i, 64, 64) for i in range(8, 15))
SHAPES = {"table": TABLE, "sweep": SWEEP, "all": TABLE + SWEEP}


def add_arguments(parser):
    recording.add_arguments(parser, "bench")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the inputs (default: float32)")
    parser.add_argument("--threads", type=whole_number, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument("--backends", type=list_of(BACKENDS), metavar="A,B",
                        help=f"of {', '.join(BACKENDS)} (default: all that can run here)")  # fmt: skip
    parser.add_argument("--rules", type=list_of(RULES), default=RULES, metavar="A,B",
                        help="of sum, delta (default: both)")  # fmt: skip
    parser.add_argument("--shapes", type=shapes, default=SHAPES["all"], metavar="SHAPES",
                        help="table: four shapes of layers; sweep: lengths 256 to 16384; all; or your own as "
                        "'B,H,L,Dk,Dv;B,H,L,Dk,Dv' (default: all)")  # fmt: skip
    parser.add_argument("--repeats", type=whole_number, default=7, metavar="N", help="rounds (default: 7)")


def whole_numbers(text):
    """Whole numbers >= 1 separated by commas, in rising order, each once."""
    return tuple(sorted({whole_number(word.strip()) for word in text.split(",")}))


def list_of(allowed):
    def names(text):
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(allowed)}")
        return words

    return names


def shapes(text):
    """Named shapes, or `B,H,L,Dk,Dv` separated by semicolons."""
    if text in SHAPES:
        return SHAPES[text]
    found = {}
    for part in text.split(";"):
        words = [word.strip() for word in part.split(",")]
        if len(words) != 5 or not all(word.isdecimal() and int(word) >= 1 for word in words):
            names = ", ".join(SHAPES)
            raise argparse.ArgumentTypeError(f"expected {names} or B,H,L,Dk,Dv in whole numbers >= 1, got {part!r}")
        found[tuple(map(int, words))] = None
    return tuple(found)


def run(options) -> int:
    """Measure, print the table and write the record. 1 where outputs of a rule disagree."""
    recording.quiet_profiler()
    recording.check(options)
    import torch

    from fwp_fairseq.benchmarks.side_by_side import SideBySide
    from fwp_fairseq.reports.bench_results import BenchRun
    from fwp_fairseq.reports.bench_table import run_markdown

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    started = time.monotonic()
    comparison = SideBySide(options)
    comparison.run()
    record = comparison.record(time.monotonic() - started)
    print(run_markdown(BenchRun.from_record(record)))
    recording.write(options, record, "bench")
    return 1 if comparison.disagreed else 0

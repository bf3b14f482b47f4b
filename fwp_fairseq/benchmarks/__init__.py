"""Benchmarks, one module for each sub-command of `fwp-bench`.

A module has `HELP`, `add_arguments(parser)` and `run(options)`, which returns the exit status. It imports nothing
heavy at its top, so that `fwp-bench --help` answers at once. A new one is a new module and a line in `cli/bench.py`.
"""


class BenchError(Exception):
    """What was asked for cannot be measured here; the text says why and what to do."""

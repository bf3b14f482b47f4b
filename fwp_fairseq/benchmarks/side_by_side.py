"""The run of `fwp-bench ops`: all shapes, and at each of them all contenders in turn; its outcome is a run record."""

import statistics

import torch

from fwp_fairseq import records
from fwp_fairseq.benchmarks.contenders import contenders
from fwp_fairseq.benchmarks.measure import (
    MatrixProduct,
    forward_backward,
    make_inputs,
    peak_bytes,
    seconds,
    useful_flop,
)
from fwp_fairseq.benchmarks.recording import environment, machine, rounded, say

EXPERIMENT = "bench_ops"
SLOW_SECONDS = 10.0
# What another order of summation may change, relative to the largest output.
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}


class SideBySide:
    """Measures what the options of `fwp-bench ops` ask for. `run()`, then `record(wall_seconds)`."""

    def __init__(self, options):
        self.options = options
        self.device, self.dtype = torch.device(options.device), getattr(torch, options.dtype)
        self.contenders, self.left_out = contenders(options.backends, options.rules, self.device, self.dtype)
        self.product = MatrixProduct(self.device, self.dtype)
        self.product_seconds, self.metrics, self.rounds = [], {}, {}
        self.too_slow = {}  # (label, shape without length) -> a length that took too long
        self.disagreed = False

    def run(self):
        for label, reason in self.left_out.items():
            say(f"left out: {label}: {reason}")
        seconds(self.product, self.device)
        # In the order of their lengths, so that what is too slow at one is not tried at the next.
        for number, shape in enumerate(sorted(self.options.shapes, key=lambda shape: shape[2]), 1):
            say(f"shape {number} of {len(self.options.shapes)}: {shape_name(shape)}")
            self.run_shape(shape)

    def run_shape(self, shape):
        inputs, gradient = make_inputs(shape, self.device, self.dtype)
        calls, outputs = {}, {}
        for contender in self.contenders:

            def call(contender=contender):
                return forward_backward(contender, inputs, gradient)

            reason = contender.too_large(shape) or self.known_as_slow(contender.label, shape)
            try:
                reason = reason or self.prepare(contender, shape, call, outputs)
            except torch.OutOfMemoryError:  # of a GPU
                reason = "out of memory"
            if reason is None:
                calls[contender] = call
            else:
                self.left_out[f"{contender.label}/{shape_name(shape)}"] = reason
                say(f"  left out: {contender.label}: {reason}")
        times = {contender: [] for contender in calls}
        for _ in range(self.options.repeats):
            self.product_seconds.append(seconds(self.product, self.device))
            for contender, call in calls.items():
                times[contender].append(seconds(call, self.device))
        for contender, rounds in times.items():
            key, median = f"{contender.label}/{shape_name(shape)}", statistics.median(rounds)
            self.metrics[f"{key}/ms"] = rounded(1000 * median)
            self.metrics[f"{key}/gflops"] = rounded(useful_flop(contender.rule, shape) / median / 1e9)
            self.rounds[f"{key}/ms"] = [rounded(1000 * x) for x in rounds]
            say(f"  {contender.label:22} {1000 * median:10.2f} ms")

    def prepare(self, contender, shape, call, outputs):
        """Warm up, compare the output, measure the memory. Returns why it is left out, or None."""
        results = []
        taken = seconds(lambda: results.append(call()), self.device)
        if taken > SLOW_SECONDS:  # the first call may have compiled kernels
            taken = seconds(call, self.device)
        if taken > SLOW_SECONDS:
            self.too_slow[contender.label, (*shape[:2], *shape[3:])] = shape[2]
            return f"takes {taken:.0f} s, more than {SLOW_SECONDS:.0f}"
        first = outputs.setdefault(contender.rule, results[0])
        difference = float((results[0] - first).abs().max() / first.abs().max())
        if not difference <= TOLERANCE[self.options.dtype]:
            self.disagreed = True
            return f"WRONG: differs from the first contender by {difference:.1g} of the largest output"
        self.metrics[f"{contender.label}/{shape_name(shape)}/peak_mb"] = rounded(peak_bytes(call, self.device) / 2**20)
        return None

    def known_as_slow(self, label, shape):
        length = self.too_slow.get((label, (*shape[:2], *shape[3:])))
        return None if length is None else f"takes more than {SLOW_SECONDS:.0f} s at L = {length} already"

    def record(self, wall_seconds):
        """The run record: medians as metrics `<rule>/<contender>/<BxHxLxDkxDv>/<quantity>`, the rounds as curves."""
        options = self.options
        matmul = [rounded(self.product.flop / taken / 1e9) for taken in self.product_seconds]
        row, device = machine(self.device)
        return records.new_record(
            experiment=EXPERIMENT,
            row=row,
            cell=options.dtype,
            seed=1,
            scale="bench",
            metrics={"matmul/gflops": statistics.median(matmul), **self.metrics},
            curves={"matmul/gflops": matmul, **self.rounds},
            updates=options.repeats,
            wall_seconds=wall_seconds,
            parameters=0,
            device=device,
            config={
                "device": options.device,
                "dtype": options.dtype,
                "threads": torch.get_num_threads(),
                "repeats": options.repeats,
                "matmul_size": self.product.size,
                "left_out": self.left_out,
                "environment": environment(),
            },
        )


def shape_name(shape) -> str:
    return "x".join(map(str, shape))

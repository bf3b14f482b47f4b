"""Where the time of a language model's training step goes, by hooks on its modules, for `fwp-bench training`."""

import time
from contextlib import contextmanager

from fwp_fairseq.benchmarks.measure import synchronize

EMBEDDING, FEED_FORWARD, PROJECTIONS, RULE = "embedding and softmax", "feed-forward", "projections", "rule"
OTHER, OPTIMIZER = "norms, dropout, residuals", "clipping and Adam"
PARTS = (EMBEDDING, FEED_FORWARD, PROJECTIONS, RULE, OTHER, OPTIMIZER)


def profile(step, device, repeats):
    """{part of PARTS: seconds of one step}, the mean of `repeats` steps, whose sum is the whole step.

    The rule is what an attention does besides its projections: feature map, normalisation, fast weights, and the
    copies between their layouts. On CUDA every part waits for the one before, so that the whole takes longer than a
    step that is not looked into.
    """
    clock = PartClock(device)
    with clock.attached(step.model.decoder):
        for _ in range(repeats):
            clock.start(OTHER)
            divisor = step.gradients()
            clock.go_over_to(OPTIMIZER)
            step.update(divisor)
            clock.stop()
    return {part: taken / repeats for part, taken in clock.seconds.items()}


class PartClock:
    """Adds up time by part. Modules lie within each other: time counts for the innermost one that is at work."""

    def __init__(self, device):
        self.device = device
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.at_work = []
        self.since = 0.0

    def start(self, part):
        self.at_work = [part]
        self.since = self.now()

    def stop(self):
        now = self.now()
        self.seconds[self.at_work[-1]] += now - self.since
        self.since = now

    def go_over_to(self, part):
        self.stop()
        self.at_work = [part]

    def enter(self, part):
        self.stop()
        self.at_work.append(part)

    def leave(self):
        self.stop()
        self.at_work.pop()

    def now(self):
        synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def attached(self, decoder):
        """Context in which the passes of a `PostNormDecoder` are timed, forward and backward."""
        handles = [*self.watch_embedding(decoder.embedding), *self.watch(decoder.adaptive_softmax, EMBEDDING)]
        for layer in decoder.layers:
            handles += self.watch(layer.ffn, FEED_FORWARD)
            handles += self.watch(layer.attention, RULE)
            for name, module in layer.attention.named_children():
                if name.endswith("_projection"):
                    handles += self.watch(module, PROJECTIONS)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def watch(self, module, part):
        def enter(*_):
            self.enter(part)

        def leave(*_):
            self.leave()

        return [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave),
            module.register_full_backward_pre_hook(enter),
            module.register_full_backward_hook(leave),
        ]

    def watch_embedding(self, embedding):
        """Its input has no gradient and so no hook; its backward pass is the last of all and ends with the whole."""

        def enter(*_):
            self.enter(EMBEDDING)

        def leave(module, inputs, embedded):
            self.leave()
            embedded.register_hook(enter)

        return [embedding.register_forward_pre_hook(enter), embedding.register_forward_hook(leave)]

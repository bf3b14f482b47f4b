"""Cutting a sequence into chunks for the chunked backends, and putting it together again.

Both chunked rules walk over *spans*: one or a few chunks of equal length that are computed as one
batch of matrix products. A span keeps the working set in cache and the temporary memory independent
of the sequence length. In a loaded span the chunk axis comes before the heads, so that the slice of
one chunk is contiguous and the scan over chunks runs on ``(B * H, C, D)`` batches.
"""

from typing import NamedTuple

import torch

# Numbers a span may hold at once: 16 MB in float32, about what stays in a processor's last cache, and
# enough for the cost of starting an operation not to matter. A quarter of it costs small heads a tenth.
_SPAN_NUMBERS = 1 << 22


class Span(NamedTuple):
    """Steps ``start..start + count * chunk`` of a sequence as ``count`` chunks."""

    start: int
    count: int
    chunk: int

    def split(self, x):
        """The span's steps of ``x: (B, H, L, ...)`` as a ``(count, B, H, chunk, ...)`` view."""
        steps = x[:, :, self.start : self.start + self.count * self.chunk]
        return steps.unflatten(2, (self.count, self.chunk)).movedim(2, 0)

    def load(self, x, dtype):
        """The span's steps of ``x`` as a contiguous ``(count * B * H, chunk, ...)`` copy."""
        steps = self.split(x)
        return steps.to(dtype, copy=True, memory_format=torch.contiguous_format).flatten(0, 2)

    def load_stacked(self, x, below, dtype):
        """Chunks of ``x`` over those of ``below``: ``(count * B * H, 2 * chunk, D)``.

        The lower halves are left for the caller to fill where ``below`` is None.
        """
        x = self.split(x)
        stacked = x.new_empty(*x.shape[:3], 2 * self.chunk, x.shape[-1], dtype=dtype)
        stacked[..., : self.chunk, :] = x
        if below is not None:
            stacked[..., self.chunk :, :] = self.split(below)
        return stacked.flatten(0, 2)

    def chunks_of(self, *tensors):
        """The loaded tensors chunk by chunk: an iterable of tuples of ``(B * H, ...)`` views."""
        return zip(*(x.unflatten(0, (self.count, -1)).unbind() for x in tensors))

    def store(self, x, target):
        """Write the result ``x: (count * B * H, chunk, ...)`` to the span's steps of ``target``."""
        view = self.split(target)
        view.copy_(x.view(view.shape))


def cut_into_spans(length, chunk, numbers_per_chunk):
    """The spans of a sequence; a rest shorter than a chunk is a span of one shorter chunk.

    ``numbers_per_chunk`` is what all heads together hold for a chunk of the sequence.
    """
    per_span = max(1, _SPAN_NUMBERS // numbers_per_chunk)
    spans, start = [], 0
    while length - start >= chunk:
        spans.append(Span(start, min(per_span, (length - start) // chunk), chunk))
        start += spans[-1].count * chunk
    if start < length:
        spans.append(Span(start, 1, length - start))
    return spans

"""The state that a language model carries along a stream, from each segment of a row to the next one.

It is part of every checkpoint: the rows of all processes are collected in the first one, so that a run may go on with
its rows spread over another number of processes.
"""

import torch

from fwp_fairseq.modules.state import concatenate_states, detach_state, map_state, reorder_state


class CarriedState:
    """Keeps the state of each batch of rows. A batch is known by its first row; segment 0 starts afresh."""

    def __init__(self):
        self.batches = {}  # first row -> (segment that comes next, state of the rows)
        self.collected = {}  # the same of all processes, on the CPU, in the first process

    def before(self, sample):
        """The state to go on with for a batch of a `TokenStream`; None for the first segment of its rows."""
        if sample["segment"] == 0:
            return None
        segment, state = self.batches.get(sample["first_row"], (None, None))
        if segment != sample["segment"]:
            raise RuntimeError(
                f"row {sample['first_row']} of the stream: the state at hand is the one ahead of segment {segment}, "
                f"the text goes on with segment {sample['segment']}"
            )
        device = sample["net_input"]["src_tokens"].device
        return map_state(lambda tensor: tensor.to(device), state)

    def after(self, sample, state) -> None:
        """Keep the state that the model returned for a batch, without its graph."""
        self.batches[sample["first_row"]] = (sample["segment"] + 1, detach_state(state))

    def collect(self) -> None:
        """Ahead of a checkpoint, in all processes at the same time."""
        own = {row: (segment, map_state(torch.Tensor.cpu, state)) for row, (segment, state) in self.batches.items()}
        parts = [own]
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            first = torch.distributed.get_rank() == 0
            parts = [None] * torch.distributed.get_world_size() if first else None
            torch.distributed.gather_object(own, parts)
        self.collected = {row: kept for part in parts or () for row, kept in part.items()}

    def state_dict(self):
        """What was collected: the next segment, and the state of all rows in order; None before the first update."""
        if not self.collected:
            return None
        ordered = [self.collected[row] for row in sorted(self.collected)]
        return {"segment": ordered[0][0], "state": concatenate_states([state for _, state in ordered])}

    def load_state_dict(self, saved, batch_size: int) -> None:
        """Take up the rows of this process, which come in batches of `batch_size` dealt out round the processes."""
        self.batches = {}
        if saved is None:
            return
        distributed = torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if distributed else 0
        processes = torch.distributed.get_world_size() if distributed else 1
        first_entry = saved["state"][0]
        rows = len(first_entry[0] if isinstance(first_entry, tuple) else first_entry)
        for first in range(rank * batch_size, rows, processes * batch_size):
            state = reorder_state(saved["state"], torch.arange(first, first + batch_size))
            self.batches[first] = (saved["segment"], state)

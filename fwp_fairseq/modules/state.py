"""The state of a model whose layers keep something of the text so far: a list with one entry a layer.

An entry is a tensor or a tuple of tensors, the batch on their first axis: the fast weights W or (W, z), the keys and
values of softmax attention, the memory of a Transformer-XL.
"""

import torch


def map_state(function, state: list) -> list:
    """The state with `function` applied to every tensor."""
    return [tuple(map(function, entry)) if isinstance(entry, tuple) else function(entry) for entry in state]


def detach_state(state: list) -> list:
    """The same numbers without the graph that made them."""
    return map_state(torch.Tensor.detach, state)


def reorder_state(state: list, order) -> list:
    """The state of the sequences `order`, (n,) indices into the batch; for beam search, and for parts of a batch."""
    return map_state(lambda tensor: tensor.index_select(0, order.to(tensor.device)), state)


def concatenate_states(states: list) -> list:
    """The state of several batches as that of one."""
    return [
        tuple(map(torch.cat, zip(*entries))) if isinstance(entries[0], tuple) else torch.cat(entries)
        for entries in zip(*states)
    ]


def check_layers(state, layers: int) -> None:
    """`ValueError` where a state is not a list with an entry for each of `layers` layers."""
    if not isinstance(state, (list, tuple)) or len(state) != layers:
        got = f"{len(state)} entries" if isinstance(state, (list, tuple)) else type(state).__name__
        raise ValueError(
            f"state: expected a list with an entry for each of the {layers} layers, as this model returned it, got {got}"
        )

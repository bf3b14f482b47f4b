"""Agreement between the processes of one training, and between a training and the one that goes on from it."""

import torch


def several() -> bool:
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def is_first() -> bool:
    return not several() or torch.distributed.get_rank() == 0


def on_all(condition: torch.Tensor) -> bool:
    """Whether a boolean tensor is true in every process, the same answer in each."""
    if several():
        condition = condition.to(torch.int32)
        torch.distributed.all_reduce(condition, torch.distributed.ReduceOp.MIN)
    return bool(condition)


def of_the_first(tensor: torch.Tensor) -> torch.Tensor:
    """What the first process has in `tensor`, which is overwritten by it in the others."""
    if several():
        torch.distributed.broadcast(tensor, 0)
    return tensor


def check_batches(saved: dict, now: dict, save_dir: str) -> None:
    """`ValueError` where a training would go on with other batches than those of its checkpoint: the place in an epoch
    is a number of batches."""
    if saved != now:
        raise ValueError(
            f"the checkpoint in {save_dir} was trained with {saved}, this run has {now}: it would go on at a wrong place "
            "of the data; resume with the same, or give another checkpoint.save_dir"
        )

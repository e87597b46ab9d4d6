"""Several processes that train one model, as torchrun starts them.

Each rank takes every world-th picture of a batch and computes its share of a loss that is divided by the count of the
whole batch; gradients are summed in one message. So the losses are those of one process with the same batch, and a
task may run its model as often as it likes in a step, compiled or captured, which a wrapper around the module forbids.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from meshcap.errors import MeshcapError


@dataclass(frozen=True)
class World:
    """This process among all."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> World:
        """Find the others, if torchrun started any."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(device)
        rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
        if device.type == "cuda":
            if local >= torch.cuda.device_count():
                raise MeshcapError(
                    f"process {local} of this machine has no GPU of its own: there are {torch.cuda.device_count()}"
                )
            device = torch.device("cuda", local)
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(device, rank, size)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def leave(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Add up the gradients of all ranks, in place, in one message."""
        if self.size == 1:
            return
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:  # not used by this rank's share
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def sum(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def agree(self, flag: bool) -> bool:
        """Whether any rank says yes: all must take the same turn (stop, for one)."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor([float(flag)], device=self.device)).item())

    def gather(self, things: list[object]) -> list[object]:
        """The lists of all ranks, one after the other."""
        if self.size == 1:
            return things
        everyone: list[list[object]] = [[] for _ in range(self.size)]
        dist.all_gather_object(everyone, things)
        return [thing for those in everyone for thing in those]

    def same_weights(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the tensors of the first."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

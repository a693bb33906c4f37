"""Processes and devices: the same command alone and under ``torchrun``.

One model: every rank takes its share of each batch (data parallel). A stack: its members are dealt out to the
ranks, which then have nothing to say to each other but hello and goodbye.
"""

from __future__ import annotations

import atexit
import os
from typing import NamedTuple

import torch

from nlaformer.arrays import usable_device
from nlaformer.errors import OptionError


class Ranks(NamedTuple):
    """A process among those of a run."""

    rank: int = 0
    world: int = 1

    def members(self, count: int, batch: int) -> list[int]:
        """Which members of a stack of ``count`` this rank trains; one model is trained by all ranks."""
        if count > 1 and self.world > count:
            raise OptionError(f"{self.world} processes for a stack of {count} models: start at most {count}")
        if count == 1 and self.world > batch:
            raise OptionError(f"{self.world} processes for a batch of {batch} systems: start at most {batch}")
        return [0] if count == 1 else list(range(self.rank, count, self.world))

    def share(self, count: int) -> tuple[int, int]:
        """The share of every batch: (rank, world) for one model, all of it for the members of a stack."""
        return (self.rank, self.world) if count == 1 else (0, 1)

    def wait(self) -> None:
        """Until every rank is here."""
        if self.world > 1:
            torch.distributed.barrier()

    def any(self, *flags: bool) -> list[bool]:
        """Which of the flags are set on any rank."""
        if self.world == 1:
            return list(flags)
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        counts = torch.tensor(flags, dtype=torch.int32, device=device)
        torch.distributed.all_reduce(counts)
        return (counts > 0).tolist()


def ranks(device: torch.device) -> Ranks:
    """The ranks that torchrun announces in the environment; alone without it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(torch.distributed.destroy_process_group)  # once: a second group could not be started
    return Ranks(torch.distributed.get_rank(), world)


def pick_device(wanted: str | torch.device | None) -> torch.device:
    """The device to train on: CUDA where there is one, this rank's own under torchrun."""
    if wanted is None:
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    # Not the first for all: whatever a rank touches keeps some of its memory for it.
    if isinstance(wanted, str | torch.device) and str(wanted) == "cuda":
        wanted = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    device = usable_device(wanted, kinds=("cpu", "cuda"))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device

"""Processes and devices: the same command alone and under ``torchrun``.

One model: every rank takes its share of each batch (data parallel). A stack: its members are distributed over the
ranks, which then meet only before the first step and after the last.
"""

from __future__ import annotations

import atexit
import os
from typing import NamedTuple

import torch

from nlaformer.arrays import usable_device
from nlaformer.errors import OptionError


class Ranks(NamedTuple):
    """A process among those that train a stack of models."""

    device: torch.device
    models: int
    rank: int = 0
    world: int = 1

    def members(self, batch: int) -> list[int]:
        """Which members of the stack this rank trains; one model is trained by all ranks."""
        if self.models > 1 and self.world > self.models:
            raise OptionError(
                f"{self.world} processes for a stack of {self.models} models: start at most {self.models}"
            )
        if self.models == 1 and self.world > batch:
            raise OptionError(f"{self.world} processes for a batch of {batch} systems: start at most {batch}")
        return [0] if self.models == 1 else list(range(self.rank, self.models, self.world))

    @property
    def share(self) -> tuple[int, int]:
        """The share of every batch: (rank, world) for one model, all of it for the members of a stack."""
        return (self.rank, self.world) if self.models == 1 else (0, 1)

    @property
    def writes(self) -> bool:
        """Whether this rank writes the folders of its members: of those that share a batch, the first does."""
        return self.share[0] == 0

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.world > 1:
            torch.distributed.barrier()

    def any(self, *flags: bool) -> list[bool]:
        """Which of the flags are set on any rank of those that share a batch."""
        if self.share[1] == 1:
            return list(flags)
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        counts = torch.tensor(flags, dtype=torch.int32, device=device)
        torch.distributed.all_reduce(counts)
        return (counts > 0).tolist()


def ranks(device: torch.device, models: int) -> Ranks:
    """The ranks that torchrun announces in the environment; one process without it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks(device, models)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(torch.distributed.destroy_process_group)  # once: a second group could not be started
    return Ranks(device, models, torch.distributed.get_rank(), world)


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

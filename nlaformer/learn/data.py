"""The training systems and the teachers' trajectories: a stream determined by the config and the step alone.

Systems are drawn in chunks of ``config.chunk`` steps. Chunk c of a member depends on its seed and on c only, so a
run that resumes, a member of a stack and a model alone all see the same systems at the same step.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.learn import teachers
from nlaformer.learn.config import Config
from nlaformer.learn.teachers import Teacher
from nlaformer.problems import Systems


class Batch(NamedTuple):
    """Systems with their solutions and the teacher's trajectory; leading axes (B) or (chunk, B)."""

    A: Tensor  # (..., n, n)
    b: Tensor  # (..., n)
    x_true: Tensor  # (..., n)
    x: Tensor  # (..., T+1, n)
    rd: Tensor  # (..., T+1, 2n): r_t, d_t, or the other states that are probed; a program has none


def with_teacher(systems: Systems, teacher: str | Teacher, T: int) -> Batch:
    """Systems (float64) with T iterations of their teacher, in float64 too."""
    teach = teachers.teacher(teacher) if isinstance(teacher, str) else teacher
    return Batch(*systems, *teach(systems.A, systems.b, T))


def targets(config: Config, systems: Systems) -> Batch:
    """Systems (float64) with what a config learns from; without a teacher, its iterates are left empty."""
    nothing = systems.x.new_empty(len(systems.x), 0, 0)
    if not config.imitates:
        return Batch(*systems, nothing, nothing)
    taught = with_teacher(systems, config.make_teacher(), config.T)
    return taught if config.program is None else taught._replace(rd=nothing)


def draw_chunk(config: Config, index: int, device: torch.device | str = "cpu") -> Batch:
    """Chunk ``index`` of a member's stream: every tensor (chunk, B, ...); float64 for programs, else float32."""
    # Hashed: torch's CPU generator uses the lower 32 bits of a seed only.
    digest = hashlib.sha256(f"nlaformer training systems {config.seed} {index}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:8]) >> 1)
    systems = config.make_family().stream(config.chunk * config.batch, generator, dtype=torch.float64)
    dtype = torch.float32 if config.program is None else torch.float64
    batch = targets(config, systems)
    return Batch(*(tensor.to(dtype).unflatten(0, (config.chunk, config.batch)) for tensor in batch))


class Stream:
    """The batches of one member, by step."""

    def __init__(self, config: Config, device: torch.device | str = "cpu"):
        self.config, self.device = config, device
        self._index = -1
        self._chunk: Batch | None = None

    def batch(self, step: int) -> Batch:
        """The systems of a training step."""
        index, within = divmod(step, self.config.chunk)
        if self._chunk is None or index != self._index:
            self._index, self._chunk = index, draw_chunk(self.config, index, self.device)
        return Batch(*(tensor[within] for tensor in self._chunk))

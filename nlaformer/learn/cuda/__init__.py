"""Training steps on CUDA, behind one name; a reader may skip this folder.

``engine_for`` gives an engine with the interface of ``learn.engine``. What engines share is in ``graph.py``: a stack as
one program, its step captured in a CUDA graph. Programs with learned parts run by torch.compile, ``compiled.py``;
solvers by kernels of their own, ``fused.py``, with the passes through the layers in ``unrolled.py``. The kernels are in
``products.py``, ``attention.py``, ``ends.py`` and ``update.py``, each with the same in plain torch; ``launch.py`` says
how they run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nlaformer.learn.config import Config
from nlaformer.learn.cuda.compiled import CompiledEngine
from nlaformer.learn.cuda.fused import fused_engine
from nlaformer.learn.cuda.graph import GraphEngine

__all__ = ["engine_for"]


def engine_for(configs: Sequence[Config], device: torch.device | str) -> GraphEngine | None:
    """The engine of a stack on a CUDA device; None if its kernels cannot run the shape."""
    return fused_engine(configs, device) if configs[0].program is None else CompiledEngine(configs, device)

"""The parameters of a stack in one tensor (E, size), so that clipping and Adam are a pass over memory each.

Every parameter starts at a multiple of ``BLOCK``; a block belongs to one parameter, and what Adam must know about it
(its learning-rate factor, its clipping group) is a number per block. The gaps stay zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nlaformer.learn.cuda.unrolled import LayerTensors, layer_passes
from nlaformer.learn.model import Solver, lr_scale
from nlaformer.transformer import Layer

__all__ = ["BLOCK", "Flat"]

BLOCK = 1024


class Flat:
    """Where each parameter of a stack lies in the flat tensor.

    Examples
    --------
    >>> import nlaformer as nf
    >>> from nlaformer.learn.model import initial, stack
    >>> flat = Flat(stack([initial(nf.recipe("quickstart"))]))
    >>> flat.size % BLOCK, flat.views(torch.zeros(1, flat.size))["positions"].shape
    (0, torch.Size([1, 9, 64]))
    """

    def __init__(self, solver: Solver):
        self.shapes = {name: p.shape for name, p in solver.named_parameters()}  # (E, ...)
        self.starts: dict[str, int] = {}
        scale, watching = [], []
        blocks = 0
        for name, shape in self.shapes.items():
            self.starts[name] = blocks * BLOCK
            count = -(-shape[1:].numel() // BLOCK)
            scale += [lr_scale(name, solver.config)] * count
            watching += [name.startswith("probe_rd")] * count
            blocks += count
        self.size = blocks * BLOCK
        device = solver.positions.device
        self.lr_scale = torch.tensor(scale, device=device)  # (blocks,)
        self.watching = torch.tensor(watching, dtype=torch.int32, device=device)  # (blocks,) 1: the (r, d) probe

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters, or whatever lies like them, by name."""
        return {name: self._view(flat, self.starts[name], shape) for name, shape in self.shapes.items()}

    def layers(self, flat: Tensor, solver: Solver, loops: int) -> list[LayerTensors]:
        """The parameters of every layer in the order of ``layer_passes``, W_Q, W_K and W_U as one view."""
        names = {id(module): name for name, module in solver.named_modules() if isinstance(module, Layer)}
        views, found = self.views(flat), []
        for layer in layer_passes(solver.blocks, loops)[0]:
            view = _under(views, names[id(layer)])
            E, d, _ = view["heads.W_Q.weight"].shape
            start = self.starts[f"{names[id(layer)]}.heads.W_Q.weight"]
            qkv = self._view(flat, start, torch.Size((E, 3 * d, d)))
            W_O, W_1, W_2 = (view[f"{name}.weight"] for name in ("heads.W_O", "ffn.W_1", "ffn.W_2"))
            gains = (view.get("gain_1"), view.get("gain_2"))
            found.append(LayerTensors(qkv, W_O, W_1, W_2, view["ffn.b_1"], view["ffn.b_2"], *gains))
        return found

    def _view(self, flat: Tensor, start: int, shape: torch.Size) -> Tensor:
        return flat[:, start : start + shape[1:].numel()].view(shape)


def _under(views: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): view for name, view in views.items() if name.startswith(f"{prefix}.")}

"""The read-in of ``model.Solver.tokens`` for a stack, and its gradient, over buffers that stay where they are.

X = W [0 | a_i ; b_i] + positions is one product with [W positions^T], of the prompt with the unit vector of its token
under every column. The gradients of W and of the positions are then one product too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nlaformer.learn.cuda.twins import Twins

if TYPE_CHECKING:
    from nlaformer.learn.cuda.kernels import TritonKernels


class ReadIn:
    """The weights (E, d, n+1) and positions (E, token, d) of a stack, and where their gradients go."""

    def __init__(
        self,
        weight: Tensor,
        positions: Tensor,
        d_weight: Tensor,
        d_positions: Tensor,
        batch: int,
        kernels: TritonKernels | Twins,
    ):
        self.weight, self.positions, self.kernels = weight, positions, kernels
        self.d_weight, self.d_positions = d_weight, d_positions
        (E, d, height), tokens = weight.shape, positions.shape[1]
        columns = -(-(height + tokens) // 16) * 16  # what tensor cores and wide loads like
        prompt = weight.new_zeros(E, batch, tokens, columns)
        prompt[..., height : height + tokens] = torch.eye(tokens, dtype=weight.dtype, device=weight.device)
        self.prompt = prompt.flatten(1, 2)  # (E, R, columns)
        self.gradient = weight.new_empty(E, d, columns)

    def forward(self, A: Tensor, b: Tensor, stream: Tensor, out: Tensor, squares: Tensor) -> None:
        """Write X (E, R, d) as the stream and as what the products read, and the squares (E, R) of its rows."""
        self.kernels.read_in(A, b, self.weight, self.positions, self.prompt, stream, out, squares)

    def backward(self, d_X: Tensor) -> None:
        """Fill the gradients, for that of X (E, R, d)."""
        height, tokens = self.weight.shape[2], self.positions.shape[1]
        gradient = self.gradient
        self.kernels.weight_gradient(d_X.unsqueeze(1), self.prompt.unsqueeze(1), gradient, None, gradient, None)
        self.d_weight.copy_(gradient[:, :, :height])
        self.d_positions.copy_(gradient[:, :, height : height + tokens].mT)

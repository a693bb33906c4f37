"""One record per algorithm: its program, and the problems it is meant for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nlaformer.program.language import Program

Arrays = dict[str, np.ndarray]
# (n, count, seed) -> inputs by name, (count, n, n), (count, n) or (count,), and the exact answers, if there are any.
Problems = Callable[[int, int, int], tuple[Arrays, np.ndarray | None]]


@dataclass(frozen=True)
class Record:
    """An algorithm of the library.

    Parameters
    ----------
    name : as in ``nf.algorithm``
    program : its class; the first line of its docstring says what it is for
    problems : draws inputs of the kind it is meant for
    iterations : of a run that gets somewhere, for systems of size n
    bound : of ``nf.compile``, where its constants keep inputs from being scaled
    particular : whether it is verified on its own problems alone; on others it diverges, breaks down or ends early
    """

    name: str
    program: type[Program]
    problems: Problems
    iterations: Callable[[int], int] = lambda n: 40
    bound: float = 1024.0
    particular: bool = False

    @property
    def purpose(self) -> str:
        """What it is for, in a line."""
        return (inspect.getdoc(self.program) or "").partition("\n")[0]

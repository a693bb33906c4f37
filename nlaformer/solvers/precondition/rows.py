"""A sparse matrix as three arrays of plain numbers, for loops over its rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rows(NamedTuple):
    """The rows of a square matrix: pointers (n + 1, uint64), columns (unsigned, sorted in each row) and values."""

    p: NDArray[Any]
    j: NDArray[Any]
    v: NDArray[Any]

    @classmethod
    def of(cls, csr: Any) -> Rows:
        """Those of a CSR matrix in canonical format; columns and values are shared with it."""
        j = np.ascontiguousarray(csr.indices)
        return cls(csr.indptr.astype(np.uint64), j.view(f"u{j.itemsize}"), np.ascontiguousarray(csr.data))

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.p) - 1

    @property
    def csr(self) -> Any:
        """The same as a CSR matrix of SciPy's."""
        import scipy.sparse as sp

        j = self.j.view(f"i{self.j.itemsize}")
        return sp.csr_matrix((self.v, j, self.p.astype(j.dtype)), shape=(self.size, self.size))

"""Numbers inside an HTML page: arrays without loss, in few characters.

The arrays of a model are put into a ``Store`` one after the other, equal ones once. Their bytes are written plane by
plane (all first bytes, all second bytes, ...), so that exponents stand beside exponents, deflated, and spelled in base
85 with an alphabet that holds no character HTML could take for markup. ``page/codec.js`` reads them back.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Python's alphabet of base 85 has < and &; a comma and a full stop stand for them.
_SAFE = bytes.maketrans(b"<&", b",.")
_KINDS = {"f8": np.float64, "f4": np.float32, "i4": np.int32, "u1": np.uint8}


@dataclass
class Store:
    """The arrays of one model or of several that are read together."""

    arrays: dict[str, list[np.ndarray]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})
    places: dict[bytes, list[Any]] = field(default_factory=dict)

    def put(self, values: Tensor | np.ndarray, kind: str) -> list[Any]:
        """Where an array stands: [kind, number of the first entry among those of its kind, number of entries]."""
        plain = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        array = np.ascontiguousarray(plain, dtype=_KINDS[kind]).reshape(-1)
        digest = hashlib.sha256(kind.encode() + array.tobytes()).digest()
        if digest not in self.places:
            self.places[digest] = [kind, sum(map(len, self.arrays[kind])), len(array)]
            self.arrays[kind].append(array)
        return self.places[digest]

    def text(self) -> str:
        """All arrays in printable characters."""
        parts = [np.concatenate([*arrays, np.empty(0, _KINDS[kind])]) for kind, arrays in self.arrays.items()]
        planes = b"".join(part.view(np.uint8).reshape(-1, part.itemsize).T.tobytes() for part in parts)
        # Higher levels take ten times as long and gain a thousandth.
        packer = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_FILTERED)
        packed = packer.compress(planes) + packer.flush()
        # Base 85 fills up to groups of four bytes, and a browser refuses bytes behind the end of a stream.
        header = np.array([len(packed), *map(len, parts)], "<u4").tobytes()
        return base64.b85encode(header + packed, pad=True).translate(_SAFE).decode("ascii")


def rounded(values: Tensor, bits: int) -> Tensor:
    """Values to so many significant bits, in their own dtype.

    >>> rounded(torch.tensor([1.0, 1.01, -3.3]), 4).tolist()
    [1.0, 1.0, -3.25]
    """
    mantissa, exponent = torch.frexp(values.double())  # mantissa in [1/2, 1)
    scaled = torch.round(mantissa * 2.0**bits) / 2.0**bits
    return (scaled * torch.pow(torch.tensor(2.0, dtype=torch.float64), exponent.double())).to(values.dtype)

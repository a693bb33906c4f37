"""The explorer: one HTML page in which transformers carry out linear algebra, live, on a matrix of your own.

``write_page`` packs weights, programs and findings (``catalogue``, ``artefacts``, ``store``) and the page's own sources
(``page/``, joined by ``bundle``) into one file. The page needs no server, no network and no part of this package: its
JavaScript evaluates eq. (1) in float64, and a browser test compares every layer with ``transformer.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

from nlaformer import io

__all__ = ["write_page"]


def write_page(path: str | os.PathLike[str] = "explorer.html") -> Path:
    """Write the explorer to a file and return its path.

    Packing takes about half a minute on one core. An open page shows what it was packed with; pack again after an
    update.
    """
    from nlaformer.explorer.bundle import page
    from nlaformer.explorer.catalogue import catalogue

    target = Path(path)
    data, stores = catalogue()
    io.make_folder(target.absolute().parent)
    io.replace_file(target, page(data, stores).encode("utf-8"))
    return target

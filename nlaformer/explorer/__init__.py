"""The explorer: one HTML page in which transformers carry out linear algebra, live, on a matrix of your own.

``write_page`` packs weights, programs and findings (``catalogue``, ``artefacts``, ``store``) and the page's own sources
(``page/``, joined by ``bundle``) into one file. The page needs no server, no network and no part of this package: its
JavaScript evaluates eq. (1) in float64, and a browser test compares every layer with ``transformer.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

from nlaformer import io
from nlaformer.errors import FileError


def write_page(path: str | os.PathLike[str] = "explorer.html") -> Path:
    """Write the explorer to a file and return its path.

    Packing takes about half a minute on one core. An open page shows what it was packed with; pack again after an
    update.
    """
    target = Path(path)
    _refuse_unwritable(target)
    from nlaformer.explorer.bundle import page
    from nlaformer.explorer.catalogue import catalogue

    data, stores = catalogue()
    io.replace_file(target, page(data, stores).encode("utf-8"))
    return target


def _refuse_unwritable(target: Path) -> None:
    """Say before the packing that there is no such file to write."""
    if target.suffix != ".html" or os.path.isdir(target):
        raise FileError(f"cannot write {target}; expected the name of an .html file, such as explorer.html")
    folder = target.absolute().parent
    io.make_folder(folder)
    if not os.access(folder, os.W_OK):
        raise FileError(f"cannot write {target}: nothing may be written into {folder}; name another folder")

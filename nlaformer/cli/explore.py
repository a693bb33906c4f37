"""The command ``explore``: the explorer as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explore(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("explorer.html"),
) -> None:
    """Write the explorer: transformers on a matrix of your own.

    One page, without server or network, in which transformers carry out linear algebra; open it in a browser.
    """
    from nlaformer.explorer import write_page

    print("Packing the weights takes about half a minute.", flush=True)
    path = write_page(out)
    print(
        f"{path}: {path.stat().st_size / 1e6:.1f} MB, works offline. Open it in a browser: {path.absolute().as_uri()}"
    )

"""A matplotlib figure that a notebook shows by itself, without pyplot. Only ``figure.blank`` imports this module."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure with its own picture: Jupyter shows plain figures only after pyplot was imported."""

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.savefig(written, format="png", dpi=110, facecolor="white", metadata={"Software": None})
        return written.getvalue()

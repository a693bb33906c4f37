"""The command line in the process of a test."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from nlaformer.cli import main


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, columns: int | None = None
) -> Any:
    """Run ``nlaformer`` with these arguments: the exit code, and what it wrote, ``out`` and ``err``."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "argv", ["nlaformer", *arguments])
    with pytest.raises(SystemExit) as exit:
        main()
    return exit.value.code or 0, capsys.readouterr()

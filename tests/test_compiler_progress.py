"""What a compile says on a terminal."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import nlaformer as nf
from nlaformer.compiler import progress
from nlaformer.errors import CompileError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Constant(nf.Program):
    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        return dict(x=x + 0.1 * (b - A @ x) / np.linalg.norm(A))


def opened(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as standard error; a fixture's would be replaced by the capture of the test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def test_a_long_compile_shows_its_stage_and_removes_the_line(monkeypatch):
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    nf.compile(Constant(), n=4)
    *lines, last, end = terminal.getvalue().split("\r")
    assert any("Constant" in line for line in lines)
    assert not last.strip() and not end


def test_a_short_compile_says_nothing(monkeypatch):
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "_FIRST", 3600.0)
    nf.compile(Constant(), n=3, verify=False)
    assert terminal.getvalue() == ""


def test_a_refused_compile_leaves_no_line(monkeypatch):
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    with pytest.raises(CompileError):
        nf.compile(type("Refused", (Constant,), {"step": lambda self, b, x: dict(x=np.median(x) * b)})(), n=3)
    assert not terminal.getvalue().split("\r")[-1]


def test_nothing_is_said_where_standard_error_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    nf.compile(Constant(), n=3)
    assert capsys.readouterr().err == ""

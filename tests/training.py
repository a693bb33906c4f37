"""Tiny trainings, and what they leave behind."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import nlaformer as nf
from nlaformer.learn import checkpoint
from nlaformer.learn.engine import PlainEngine
from nlaformer.learn.recipes import Config

TINY = Config(n=3, T=3, d=8, heads=2, batch=4, steps=12, warmup=2, chunk=4)


def train(config, out, **options):
    usual = {"device": "cpu", "progress": False, "checkpoint_every": 3, "log_every": 1}
    return nf.train(config, out=out, **(usual | options))


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def final(folder):
    return checkpoint.read(folder / checkpoint.LATEST).state


def interrupt_at(step, monkeypatch):
    """Let the process die, without a word, in a step."""
    original = PlainEngine.step

    def dying(self, number):
        if number == step:
            raise SystemExit
        original(self, number)

    monkeypatch.setattr(PlainEngine, "step", dying)


def imported(name: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's file in the current folder, imported while a fixture lasts."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)

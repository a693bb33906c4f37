"""Progress in a notebook: one line that changes, however long a run takes."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from rich.console import Console

from nlaformer.learn import progress


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The outputs of a cell, each with the texts it has had; IPython is not there where tests run."""
    outputs: list[list[str]] = []

    class Handle:
        def __init__(self, texts: list[str]) -> None:
            self.texts = texts

        def update(self, bundle: dict, raw: bool) -> None:
            self.texts.append(bundle["text/plain"])

    def display(bundle, raw=False, display_id=False):
        outputs.append([bundle["text/plain"] if raw else str(bundle)])
        return Handle(outputs[-1])

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(stderr=stderr, force_jupyter=True))
    return outputs


def test_training_in_a_notebook_shows_one_line_that_changes(shown):
    with progress.TrainingProgress("title", 40, 0, True, False) as bar:
        for step in range(1, 41):
            bar.due(step)
            bar.update(step, 1.0 / step)
    _, line = shown  # first how many steps are left
    assert len(line) == 40 and "40/40" in line[-1]


def test_stages_in_a_notebook_replace_each_other(shown):
    with progress.stages() as say:
        say("first")
        say("second")
    assert shown == [["first", "second"]]


def test_elsewhere_every_line_is_printed(capsys):
    with progress.TrainingProgress("title", 2, 0, True, False) as lines:
        for step in (1, 2):
            lines.update(step, 0.5)
    assert "1/2" in (told := capsys.readouterr().err) and "2/2" in told

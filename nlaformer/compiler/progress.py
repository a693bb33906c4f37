"""What a long compile says on a terminal: the stage that it is in, once it has taken two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FIRST = 2.0  # seconds before the first line


@contextmanager
def stages(name: str) -> Iterator[Callable[[str], None]]:
    """Give a function that notes the current stage; the line is replaced by the next one, and removed at the end.

    Nothing is written where standard error is no terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda stage: None
        return
    line = _Line(name)
    timer = threading.Timer(_FIRST, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield line.note
    finally:
        timer.cancel()
        line.close()


class _Line:
    def __init__(self, name: str) -> None:
        self._name, self._stage, self._width = name, "", 0
        self._shown = self._closed = False
        self._lock = threading.Lock()  # the first line comes from another thread

    def note(self, stage: str) -> None:
        with self._lock:
            self._stage = stage
            if self._shown:
                self._write()

    def show(self) -> None:
        with self._lock:
            self._shown = True
            if not self._closed:
                self._write()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._width:
                print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)

    def _write(self) -> None:
        text = f"compiling {self._name}: {self._stage}"
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(text))

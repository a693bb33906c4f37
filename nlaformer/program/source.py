"""Lines of a user: the one that is being traced, and the function that it calls."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import itertools
import linecache
import os
import sys
import warnings
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from nlaformer.program.ir import Line

# Lines in these files and in these packages are never the user's.
_HERE = str(Path(__file__).parent)
_SCIPY = importlib.util.find_spec("scipy")  # found, not loaded
# No user calls the package from these: itself, and the wrapper that a context manager is as a decorator.
_BELOW_THE_CALL = (os.path.join(Path(__file__).parents[1], ""), contextlib.__file__)
_LIBRARIES = (np.__path__[0], torch.__path__[0], *((_SCIPY and _SCIPY.submodule_search_locations) or ()))


def is_users(frame: FrameType) -> bool:
    """Whether a line that runs is neither of this room nor of NumPy, torch or SciPy."""
    return not frame.f_code.co_filename.startswith((_HERE, *_LIBRARIES))


def current_line() -> Line:
    """The innermost line that is not ours: where the user wrote it."""
    frame = _frames()[-1]
    return Line.at(frame.f_code.co_filename, frame.f_lineno)


def _frames() -> list[FrameType]:
    """The frames from here to the innermost one that is neither ours nor a library's."""
    frames = [sys._getframe(1)]
    while (back := frames[-1].f_back) is not None and not is_users(frames[-1]):
        frames.append(back)
    return frames


def calling_library() -> str:
    """The function of a library that the user's line calls, where a library's lines lie between it and ours."""
    return calling() if any(f.f_code.co_filename.startswith(_LIBRARIES) for f in _frames()) else ""


def calling() -> str:
    """The name under which the user's line calls what is running now, such as float or math.sin; "" if none."""
    frame = _frames()[-1]
    line, end, start, stop = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if line is None or end is None or start is None or stop is None:
        return ""
    text = [linecache.getline(frame.f_code.co_filename, number).encode() for number in range(line, end + 1)]
    text[-1] = text[-1][:stop]
    text[0] = text[0][start:]
    try:
        found = ast.parse(b"".join(text).decode(errors="replace"), mode="eval").body
    except SyntaxError:
        return ""
    return ast.unparse(found.func) if isinstance(found, ast.Call) else ""


def warn(message: str) -> None:
    """A warning at the line that called the package, through however many calls of its own."""
    frame, level = sys._getframe(), 1
    while frame.f_code.co_filename.startswith(_BELOW_THE_CALL) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)

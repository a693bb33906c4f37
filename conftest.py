"""Doctests are collected from every module; those that need Triton are left out where it is not installed."""

import importlib.util

collect_ignore = (
    [] if importlib.util.find_spec("triton") else ["nlaformer/learn/kernels.py", "nlaformer/learn/update.py"]
)

"""Where a number comes from: machine, versions, commit, date; kept beside every recorded number."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import nlaformer

_ROOT = Path(__file__).resolve().parents[1]
_OWN = ("nlaformer", "paper", "benchmarks")  # folders of the checkout that results are made by
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "typer", "rich", "matplotlib")


def provenance(commit: str | None = None) -> dict[str, Any]:
    """Machine, versions, commit and date, as plain data; pass the commit where there is no checkout to read it from.

    >>> sorted(provenance())
    ['commit', 'date', 'machine', 'versions']
    """
    import torch

    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
        "accelerators": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
    }
    return {
        "machine": machine,
        "versions": {"nlaformer": nlaformer.__version__, "python": platform.python_version(), **versions(PACKAGES[:2])},
        "commit": commit or _checked_out(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def processor() -> str:
    """The processor's name; Python's own answer is empty on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """The installed versions, without importing anything; None where a package is missing."""
    return {package: _version(package) for package in packages}


def loaded_files() -> list[str]:
    """The files of the checkout whose modules are loaded now, relative to it: what a result measured now depends on."""
    paths = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = {Path(path).resolve() for path in paths if path}
    here = (path.relative_to(_ROOT) for path in own if path.is_relative_to(_ROOT) and path.suffix == ".py")
    return sorted(path.as_posix() for path in here if path.parts[0] in _OWN)


def changed_since(where: dict[str, Any]) -> list[str] | None:
    """The files that a result depends on and that have changed since its commit; None where git cannot tell.

    >>> changed_since({"commit": "0" * 40, "files": ["nlaformer"]}) is None
    True
    """
    commit = (where["commit"] or "").partition(" ")[0]
    return _differences(commit, tuple(where["files"])) if commit and "files" in where else None


@cache
def _differences(commit: str, files: tuple[str, ...]) -> list[str] | None:
    found = _git("diff", "--name-only", commit, "--", *files)
    return None if found is None else found.splitlines()


def _checked_out() -> str | None:
    """The commit of the checkout this package runs from, if it runs from one."""
    head, changed = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "-uno")
    return None if head is None or changed is None else head + (" with changes" if changed else "")


def _git(*arguments: str) -> str | None:
    """What git prints in the checkout this package runs from; None where there is none, or git fails."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def in_words(where: dict[str, Any]) -> str:
    """A provenance in one line."""
    device, versions = where["machine"], where["versions"]
    head, _, changes = (where["commit"] or "unknown").partition(" ")
    parts = [
        f"{device['processor']}, {device['cores']} cores, {device['threads']} thread(s)",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"commit {head[:7]} {changes}".rstrip(),
        where["date"],
    ]
    return "; ".join(parts)


def _version(package: str) -> str | None:
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)  # with the build, 2.11.0+cu130; the metadata may lack it
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

"""The command ``info``: versions, devices, threads."""

from __future__ import annotations

from nlaformer.cli.options import Json
from nlaformer.console import Sheet, print_json, print_sheets


def info(as_json: Json = False) -> None:
    """Versions, devices and threads: what to put into a bug report."""
    from nlaformer.provenance import provenance, versions

    where = provenance()
    where["versions"] |= versions()
    if as_json:
        print_json(where)
        return
    machine = where["machine"]
    lines = [(name, version or "not installed") for name, version in where["versions"].items()]
    lines += [
        ("processor", f"{machine['processor']}, {machine['cores']} cores"),
        ("threads", f"{machine['threads']} (torch; OMP_NUM_THREADS changes it)"),
        ("accelerators", ", ".join(machine["accelerators"]) or "none"),
        ("system", machine["system"]),
        ("commit", where["commit"] or "not a checkout"),
    ]
    print_sheets([Sheet("nlaformer", ("", ""), tuple(lines), words=True)])

"""``python -m benchmarks`` lists the benchmarks; ``python -m benchmarks.NAME`` runs one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from nlaformer.console import Sheet, print_sheets, run_command


def found() -> dict[str, str]:
    """The benchmarks, the modules that can be run, and the first sentence of each."""
    sources = {path.stem: path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))}
    return {
        name: (ast.get_docstring(ast.parse(source)) or "").split("\n")[0].replace("``", "")
        for name, source in sources.items()
        if "__main__" in source and not name.startswith("__")
    }


def main() -> int:
    """Print the list."""
    note = "Run one with python -m benchmarks.NAME; --help shows its options. benchmarks/README.md says more."
    print_sheets([Sheet("Benchmarks", ("name", "what"), tuple(found().items()), note, words=True)])
    return 0


if __name__ == "__main__":
    sys.exit(run_command("benchmarks", main))

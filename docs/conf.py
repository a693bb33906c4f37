"""How Sphinx makes the site of these pages; ``make docs`` calls it.

The pages are ordinary Markdown and read the same on GitHub. The source folder is the repository, so their relative
links hold in the site too. What Markdown cannot say is added while a page is read: the navigation from the lists of
links in ``docs/index.md``, the docstring of every name that is an item of ``docs/api.md``, and the commands' help.
"""

import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

import typer.main
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import nlaformer as nf  # noqa: E402
from nlaformer import cli  # noqa: E402
from nlaformer.explorer import write_page  # noqa: E402

project, author, version = "nlaformer", "the authors of nlaformer", nf.__version__
copyright = "Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md", "*.md", "paper/*.md", "paper/tables/*.md", "benchmarks/README.md", "benchmarks/results/*.md",
    "examples/README.md",
    "nlaformer/pretrained/*/README.md",
]  # fmt: skip
exclude_patterns = [".*", "build", "dist", "runs", "out"]

myst_heading_anchors = 4
suppress_warnings = ["toc.not_included"]  # tables of results and cards are reached by links

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc has them in words
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_use_rtype = False

html_theme = "furo"  # its fonts and scripts come with it
html_title = f"nlaformer {version}"
html_copy_source = False
html_additional_pages = {"index": "redirect.html"}  # the site opens at its root
templates_path = ["templates"]

SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", flags=re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^- \[([^]]+)\]\(([^)#]+\.md)\)", flags=re.MULTILINE)
NAME = re.compile(r"^- `nf\.([\w.]+)`.*$\n?", flags=re.MULTILINE)
COLON = "\ue000"  # stands for a colon while Napoleon reads


def navigation(text: str) -> str:
    """The page with a hidden table of contents for every section that is a list of links."""
    trees = [
        f"```{{toctree}}\n:caption: {title}\n:hidden:\n\n"
        + "\n".join(f"{name} <{page}>" for name, page in ITEM.findall(body))
        + "\n```\n"
        for title, body in SECTION.findall(text)
        if ITEM.search(body)
    ]
    text = text.replace("- The explorer", '- <a href="../explorer.html">The explorer</a>')  # which GitHub does not have
    return text + "\n" + "\n".join(trees)


def documented(item: re.Match[str]) -> str:
    """The directive that shows the docstring of a public name."""
    name, value = item[1], pkgutil.resolve_name(f"nlaformer:{item[1]}")
    target = f"nlaformer.{name}"
    if isinstance(value, type):
        return f"```{{eval-rst}}\n.. autoclass:: {target}\n   :members:\n```\n"
    if isinstance(value, ModuleType):  # nf.microscope, a room that can be called
        target = f"{nf._HOME[name]}.{name}"
    return f"```{{eval-rst}}\n.. autofunction:: {target}\n```\n"


def commands() -> str:
    """The help of every command, as the terminal shows it."""
    group, parts = typer.main.get_command(cli.app), []
    top = typer.Context(group, info_name="nlaformer")
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        if not command.hidden:
            inside = typer.Context(command, info_name=name, parent=top, max_content_width=100)
            parts.append(f"## nlaformer {name}\n\n```text\n{command.get_help(inside)}\n```\n")
    return "\n\n".join(parts)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] = navigation(source[0])
    elif page == "docs/api":
        source[0] = NAME.sub(documented, source[0])
    elif page == "docs/commands":
        source[0] += f"\n{commands()}"


def docstring(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Our docstrings for Napoleon: bars are norms, attributes are explained rather than typed, colons are colons."""
    text = "\n".join(re.sub(r"(``.*?``)|\|", lambda found: found[1] or "\\|", line) for line in lines)
    head, attributes, rest = text.partition("Attributes\n----------\n")
    attributes, _, rest = rest.partition("\n\n") if attributes else ("", "", "")
    lines[:] = head.splitlines()
    if attributes:
        lines += ["Attributes", "----------"]
        for entry in re.split(r"\n(?=\S)", attributes):
            names, _, meaning = entry.partition(" : ")
            for each in names.split(", "):
                lines += [each, *(f"    {line.strip()}" for line in meaning.splitlines())]
        lines += ["", *rest.splitlines()]
    if what in ("property", "attribute"):  # Napoleon takes what stands before a colon for a type
        lines[:] = [line.replace(":", COLON) for line in lines]


def colons(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def explorer(app: Sphinx, failure: Exception | None) -> None:
    """The explorer beside the pages."""
    if failure is None:
        write_page(Path(app.outdir) / "explorer.html")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", explorer)
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", docstring, priority=400)  # Napoleon's is 500
    app.connect("autodoc-process-docstring", colons, priority=600)

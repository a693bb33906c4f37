"""What a finished site must hold to: ``python docs/check_site.py build/site``, the last step of ``make docs``.

Every link inside the site leads to a file and to an anchor in it, and no page loads anything from the network.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

REMOTE = re.compile(r"(?:https?:)?//")
STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")
SCRIPT = re.compile(r"(?:import\s*\(?|from|fetch\s*\(|\.src\s*=)\s*[\"'`]((?:https?:)?//[^\"'`]+)")


@dataclass
class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a":
            self.links += [given["href"]] if "href" in given else []
        else:
            self.loaded += [given[name] for name in ("src", "href", "data", "poster") if given.get(name)]


def problems(site: Path) -> list[str]:
    """A line for every broken link and for everything that would be fetched from the network."""
    site, pages = site.resolve(), {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found = [] if pages else [f"{site} holds no page"]
    for path, page in pages.items():
        here = path.relative_to(site)
        found += [f"{here} loads {target}" for target in page.loaded if REMOTE.match(target)]
        found += [f"{here} has a broken link: {link}" for link in page.links if not _leads_somewhere(link, path, pages)]
    for kind, pattern in ((".css", STYLE), (".html", STYLE), (".js", SCRIPT), (".html", SCRIPT)):
        for path in sorted(site.rglob(f"*{kind}")):
            targets = pattern.findall(path.read_text(encoding="utf-8"))
            found += [f"{path.relative_to(site)} loads {target}" for target in targets]
    return found


def _leads_somewhere(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    target = urlsplit(link)
    if target.scheme or target.netloc:
        return True  # the world outside is not ours to check
    file = (path.parent / unquote(target.path)).resolve() if target.path else path
    if target.fragment and file in pages:
        return unquote(target.fragment) in pages[file].anchors
    return file.is_file()


if __name__ == "__main__":
    complaints = problems(Path(sys.argv[1]))
    print("\n".join(complaints) or f"The site is whole: open {Path(sys.argv[1]) / 'index.html'}")
    sys.exit(bool(complaints))

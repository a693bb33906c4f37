"""The explorer in a real browser: the page, packed once, and headless Chromium driven by Playwright.

The browser is Debian's chromium, which ``make test`` installs where it may, or the one that NLAFORMER_BROWSER names.
Without one, or without Playwright, the tests that ask for it are skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


def executable() -> str | None:
    """The browser to use, if there is one; a browser that is named must be there."""
    named = os.environ.get("NLAFORMER_BROWSER")
    if named and not shutil.which(named):
        pytest.fail(f"NLAFORMER_BROWSER is {named}, and no program has that name")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as ``nlaformer explore`` writes it, once for all processes of a test run; beside it what it printed."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    path = shared / "explorer.html"
    with open(shared / "explorer.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            command = [sys.executable, "-m", "nlaformer", "explore", "--out", str(path)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            path.with_suffix(".txt").write_text(done.stdout, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for the tests of one file: its driver keeps an event loop running, which other tests must not find."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e .[dev]")
    path = executable()
    if path is None:
        pytest.skip("no browser: install chromium, or name one by NLAFORMER_BROWSER")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no sandbox
        yield browser
        browser.close()


class Visit:
    """A page that is open, and everything it complained about or asked the network for."""

    def __init__(self, browser: Any, path: Path, viewport: dict[str, int], fragment: str = "", **options: Any):
        self.context = browser.new_context(viewport=viewport, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self._heard(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri() + fragment)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    @property
    def elsewhere(self) -> list[str]:
        """What was asked for beside the page itself and what it holds in memory."""
        return [url for url in self.requests if not url.startswith(("file:", "blob:", "data:"))]

    def processor_seconds(self, script: str, *given: Any) -> float:
        """How long the page's own thread computes in ``evaluate``, whatever else the machine does."""
        session = self.context.new_cdp_session(self.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def used() -> float:
            return next(
                m["value"] for m in session.send("Performance.getMetrics")["metrics"] if m["name"] == "ThreadTime"
            )

        before = used()
        self.evaluate(script, *given)
        return used() - before

    def evaluate(self, script: str, *given: Any) -> Any:
        """What a function of the page returns for a list; as text, since Playwright takes numbers one by one."""
        called = f"async (text) => JSON.stringify(await ({script})(JSON.parse(text)))"
        return json.loads(self.page.evaluate(called, json.dumps(given)))


@pytest.fixture
def visit(chromium: Any, page_file: Path) -> Iterator[Any]:
    """Opens the page; every visit of a test is closed after it."""
    opened: list[Visit] = []

    def open_page(
        viewport: dict[str, int] = DESKTOP, fragment: str = "", path: Path = page_file, **options: Any
    ) -> Visit:
        opened.append(Visit(chromium, path, viewport, fragment, **options))
        return opened[-1]

    yield open_page
    for each in opened:
        each.context.close()

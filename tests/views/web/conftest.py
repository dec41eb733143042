"""One store made by the real pipeline, its viewer, and a headless Chromium, for all tests of the viewer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from viewer_site import CHROMIUM, Viewer, make_site, serve_viewer

WAIT_MS = 180_000
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("viewer")
    make_site(root)
    return root


@pytest.fixture(scope="session")
def viewer(site: Path) -> Iterator[Viewer]:
    with serve_viewer(site) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each file: while it is open, Playwright keeps an event loop running in this thread, and no other one can
    run in the tests that follow."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: chromium)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=WAIT_MS)
        new_context = running.new_context

        def patient_context(**options: Any) -> BrowserContext:
            context = new_context(**options)
            context.set_default_timeout(WAIT_MS)  # Playwright's own 30 s are too few for a page on a busy machine
            return context

        running.new_context = patient_context  # type: ignore[method-assign]
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, viewer: Viewer) -> Iterator[Page]:
    """A page of a browser that is logged in. What a page says on the console as an error fails the test: a script that
    the policy stopped is one."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(viewer.link)
    yield opened
    context.close()
    assert not said

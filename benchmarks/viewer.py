"""How fast the viewer's pages open, measured in a headless Chromium: a store of many runs, a run of many spans, a
sequence of many tokens. A page is open when what a person came for is drawn; scrolling is measured by its frames.

    python benchmarks/viewer.py [--runs 10000] [--spans 30000] [--tokens 50000]
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from simulated_agent import Run, message, result
from viewer_site import CHROMIUM, Viewer, serve_viewer

from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.store import Store
from arttrace.system.paths import DataDir

ROUNDS = 5
_FRAMES = """async () => {
    const gaps = []; let last = performance.now();
    for (let at = 0; at < 90; at++) {
        scrollBy(0, 400);
        await new Promise(requestAnimationFrame);
        const now = performance.now(); gaps.push(now - last); last = now;
    }
    return gaps.sort((a, b) => a - b);
}"""


def small_run(number: int) -> list[SpanRow]:
    """A run of one call."""
    run = Run(f"run-{number:06d}", scenario=f"task {number % 500}")
    at = number * 1000
    run.chat("c", [message("user", f"question {number}")], message("assistant", "answer"), at=at + 1)
    return run.end(at=at + 20)


def big_run(spans: int) -> list[SpanRow]:
    """Sub-agents of 100 turns, each a call and two tools."""
    run = Run("run-with-many-spans")
    for worker in range(max(1, spans // 300)):
        start = 10 + worker * 10
        agent = run.agent(f"worker {worker}", at=start, until=start + 4000)
        history = [message("system", "You work."), message("user", f"task {worker}")]
        for turn in range(100):
            name, at = f"{worker}-{turn}", start + turn * 40
            asked = ((f"{name}-0", "look", '{"q":1}'), (f"{name}-1", "add", '{"a":2}'))
            answer = message("assistant", f"step {turn} of worker {worker}", calls=asked)
            nothing = {"PROMPT_TOKEN_IDS": None, "TOKEN_IDS": None, "LOGPROBS": None}
            run.chat(name, history, answer, at=at, until=at + 10, parent=agent, flow=f"E{worker}", **nothing)
            for id, tool, arguments in asked:
                shown = {"TOOL_CALL_ID": id, "TOOL_CALL_RESULT": "found", "TOOL_CALL_ARGUMENTS": arguments}
                run.tool(id, tool, at=at + 11, until=at + 20, parent=agent, **shown)
            history = [*history, answer, *(result(id, "found") for id, _, _ in asked)]
    return run.end(at=10 + spans)


def long_run(tokens: int) -> list[SpanRow]:
    """One call whose answer is half of the tokens, its prompt the other half."""
    rng = random.Random(1)
    run = Run("run-with-many-tokens")
    prompt, sampled = ([rng.randrange(3, 30_000) for _ in range(tokens // 2)] for _ in range(2))
    run.chat(
        "c",
        [message("user", "Write at length.")],
        message("assistant", "word " * 2000),
        at=1,
        PROMPT_TOKEN_IDS=encode_token_ids(prompt),
        TOKEN_IDS=encode_token_ids(sampled),
        LOGPROBS=encode_logprobs([-rng.expovariate(1.5) for _ in sampled]),
        USAGE_INPUT_TOKENS=len(prompt),
        USAGE_OUTPUT_TOKENS=len(sampled),
    )
    return run.end(at=500)


def opened(page: Page, address: str, selector: str) -> float:
    """Milliseconds from asking for a page until what it is for is drawn."""
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.locator(selector).first.wait_for()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return 1000 * (time.perf_counter() - began)


def measure(viewer: Viewer, page: Page, name: str, address: str, selector: str) -> None:
    """Prints a line: the first time, the median of the next ones, and the frames of scrolling."""
    first = opened(page, viewer.url + address, selector)
    again = statistics.median(opened(page, viewer.url + address, selector) for _ in range(ROUNDS))
    frames = page.evaluate(_FRAMES)
    if page.locator(".block").count() > 1 and page.locator(".block:not([data-src])").count() == 1:
        raise SystemExit(f"{name}: only the first block came")
    middle, worst = frames[len(frames) // 2], frames[int(len(frames) * 0.95)]
    print(f"| {name} | {first:.0f} ms | {again:.0f} ms | {middle:.0f} ms | {worst:.0f} ms |", flush=True)


def main() -> None:
    """Makes the store, opens each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--spans", type=int, default=30_000)
    parser.add_argument("--tokens", type=int, default=50_000)
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    with Store.open(DataDir(root), create=True) as store:
        for start in range(0, given.runs, 1000):
            store.append([span for number in range(start, min(start + 1000, given.runs)) for span in small_run(number)])
        store.append(big_run(given.spans))
        store.append(long_run(given.tokens))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        with serve_viewer(root) as viewer:
            began = time.perf_counter()
            page.goto(viewer.link, wait_until="commit")
            page.locator("#newest tr[id]").first.wait_for()
            print(f"runs, none of which was ever read: the newest are listed after {took(began)}")
            page.get_by_text("being read").wait_for(state="detached", timeout=600_000)
            print(f"all are read, once, after {took(began)}")
        with serve_viewer(root) as viewer:
            pages(viewer, page, given)
        browser.close()
    shutil.rmtree(root)


def took(began: float) -> str:
    """Seconds since then."""
    return f"{time.perf_counter() - began:.2f} s"


def pages(viewer: Viewer, page: Page, given: argparse.Namespace) -> None:
    """Opens each page and prints a line of it."""
    page.goto(viewer.link)
    big, long = "/runs/run-with-many-spans", "/runs/run-with-many-tokens"
    print("| page | first | again, median | frame, median | frame, 95 % |\n|---|---|---|---|---|")
    measure(viewer, page, f"runs, {given.runs} in the store", "/runs", "#newest tr[id]")
    measure(viewer, page, "runs, filtered by group", "/runs?group=task+7", "#newest tr[id]")
    began = time.perf_counter()
    shown = opened(page, viewer.url + big, "article.entry")
    print(f"| run of {given.spans} spans, never opened before: its first entries | {shown:.0f} ms | | | |")
    page.locator("[data-awaits]").wait_for(state="detached")
    print(f"| all of it, in their place | {took(began)} | | | |")
    measure(viewer, page, "its transcript, opened before", big, "article.entry")
    measure(viewer, page, "its timeline", big + "/timeline", ".bar-row")
    measure(viewer, page, "its message graph", big + "/graph", ".graph-row")
    measure(viewer, page, f"sequence of {given.tokens} tokens", long + "/tokens", ".tokens .c, .tokens .t")


if __name__ == "__main__":
    main()

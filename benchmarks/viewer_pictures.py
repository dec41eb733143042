"""Makes the pictures of the viewer in docs/images: a travel desk on the openai client is captured, judged by made-up
scores and trained by made-up steps, and `arttrace view`'s pages are drawn in a headless Chromium.

    python benchmarks/viewer_pictures.py [--out docs/images]
"""

from __future__ import annotations

import argparse
import math
import re
import struct
import sys
import tempfile
from array import array
from pathlib import Path

import msgspec
from playwright.sync_api import Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from viewer_site import CHROMIUM, LISBON, OSLO, Viewer, capture, daemon_state, serve_viewer, steps, write_serving

from arttrace.records.policy import Consumed
from arttrace.records.reward import Judgement, Reward, reward_clock
from arttrace.records.sequence import TokenSequence
from arttrace.records.values.learned_tokens import (
    LEARNED_TOKENS,
    Columns,
    encode_learned,
    little_endian,
    sequence_key,
)
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import open_store
from arttrace.system.evaluations import add_evaluation
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences

WIDTH, HEIGHT, STEPS = 1280, 760, 31
TURIN = [
    {"question": "Plan a weekend in Turin", "scenario": "turin weekend", "seed": seed, "reward": reward}
    for seed, reward in ((0, 0.9), (3, 0.7), (1, 0.2), (2, 0.15), (6, 0.8))
]
OTHERS = [
    {"question": "Plan a night in Porto", "scenario": "porto night", "top_p": 0.5, "reward": 0.4},
    {"question": "Plan a week in Lisbon", "scenario": "lisbon week", "again": True, "seed": 0, "reward": 0.8},
    {"question": "Plan a weekend in Atlantis", "scenario": "atlantis weekend", "tags": ["beta"]},
    {"question": "Plan a week in Oslo", "scenario": "oslo week", "reward": 0.6},
]
SAID = {
    0.95: "It names sights and a hotel with rooms, and leaves time for the river.",
    0.5: "Short, yet correct: a hotel with rooms, and the weather.",
    0.05: "It refuses the task, although both tools had answered.",
}


def make_store(root: Path) -> None:
    """Captured runs, a judgement of one group, thirty steps, and what the last one computed of each trained token."""
    capture(root, [*LISBON, *OSLO, *OTHERS[:2], *TURIN, *OTHERS[2:]]).write(root / "model")
    data = DataDir(root)
    with open_store(data) as store:
        runs = store.trajectories(group="lisbon weekend")
        scores = {run.id: score for run, score in zip(runs, SAID, strict=True)}
        said = {id: SAID[score] for id, score in scores.items()}
        now = reward_clock.now_ns
        store.append(
            [Judgement("j1", "key", "lisbon weekend", "openai/o3", "rubric", scores, said, 900, 120, 0.004, now())]
        )
        store.append(
            Reward(f"j1:{id}", id, score, "ruler", "judge", explanation=said[id], judgement_id="j1", time_ns=now())
            for id, score in scores.items()
        )
        store.append(steps(root, [Consumed(run.id, run.revision) for run in runs], STEPS))
        rewards = [trajectory_reward(store.trajectory(run.id)) or 0.0 for run in runs]
        mean = sum(rewards) / len(rewards)
        learned = [
            _columns(one, reward - mean) for run, reward in zip(runs, rewards, strict=True) for one in sequences(run)[0]
        ]
    newest = root / "policies" / "policy" / f"policy@{STEPS}"
    newest.mkdir(parents=True)
    (newest / LEARNED_TOKENS).write_bytes(encode_learned(learned))
    state = daemon_state() | {"step": STEPS}
    (newest.parent / "daemon.json").write_bytes(msgspec.json.encode(state))
    write_serving(data, newest.name)
    for step, score in ((0, 0.31), (10, 0.62), (20, 0.74), (STEPS, 0.81)):
        add_evaluation(data, "policy", step, {"val/reward": score, "val/runs": 12.0})


def _columns(one: TokenSequence, advantage: float) -> Columns:
    """A learner that agrees with the engine to the third digit."""
    places = [place for place, trained in enumerate(one.trained) if trained]
    apart = [(place * 37 % 9 - 4) / 2000 for place in places]
    learner = [(one.logprobs[place] or 0.0) + gap for place, gap in zip(places, apart, strict=True)]
    return Columns(
        sequence_key(one),
        advantage,
        little_endian(array("I", places)),
        struct.pack(f"<{len(places)}e", *learner),
        struct.pack(f"<{len(places)}e", *map(math.exp, apart)),
        bytes(len(places)),
    )


def draw(page: Page, viewer: Viewer, out: Path) -> None:
    """Goes the ways that docs/view.md describes, and draws where they lead."""

    def picture(name: str) -> None:
        page.mouse.move(0, 0)
        page.wait_for_function("document.fonts.status === 'loaded'")
        page.screenshot(path=out / f"view-{name}.png")
        print(out / f"view-{name}.png")

    page.goto(viewer.link)
    expect(page.locator("#newest tr[id]")).to_have_count(len([*LISBON, *OSLO, *TURIN, *OTHERS]))
    picture("runs")
    page.get_by_role("link", name=re.compile("Failed")).click()
    page.locator("#newest tr[id]").first.click()
    expect(page.locator("#problem")).to_be_visible()
    picture("run")
    page.get_by_role("link", name="Groups").click()
    page.get_by_role("link", name=re.compile("Teaches nothing")).click()
    page.get_by_role("link", name="oslo day").click()
    expect(page.locator("#verdict")).to_contain_text("teaches nothing")
    picture("silent")
    page.goto(f"{viewer.url}/groups/one?key=lisbon%20weekend")
    expect(page.locator(".beside section")).to_have_count(2)
    picture("group")
    page.locator("tbody tr[data-href]").first.click()
    page.get_by_role("link", name="Tokens", exact=True).click()
    page.locator("[data-tokens]").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#token-said")).to_contain_text("learner")
    page.locator("[data-tokens]").blur()
    picture("tokens")
    page.get_by_role("link", name="Training").click()
    expect(page.locator(".chart canvas").last).to_be_visible()
    picture("training")


def main() -> None:
    """Makes the store, serves it, draws."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    options.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    out = options.parse_args().out
    if CHROMIUM is None:
        raise SystemExit("chromium is not installed (Debian: apt-get install chromium-headless-shell)")
    with tempfile.TemporaryDirectory() as directory:
        make_store(Path(directory))
        with serve_viewer(Path(directory)) as viewer, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", reduced_motion="reduce"
            )
            draw(page, viewer, out)
            browser.close()


if __name__ == "__main__":
    main()

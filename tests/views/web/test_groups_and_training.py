"""Groups and training in a browser: why a group taught nothing, where runs part, and which runs a step came from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect
from recorded_runs import recorded_group
from starlette.testclient import TestClient
from viewer_site import KEY, Viewer

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.reward import JUDGE, Reward
from arttrace.records.values.equal_rewards import exact_mean
from arttrace.store import Store, TrajectorySummary
from arttrace.system.journal.lock import acquire
from arttrace.system.paths import DataDir
from arttrace.views.web.app import create_app
from arttrace.views.web.models.group_page import group_row, group_rows, histogram, members, what_it_teaches
from arttrace.views.web.models.training_page import versions


def test_why_a_group_taught_nothing_is_found_in_three_clicks(page: Page) -> None:
    page.get_by_role("link", name="Groups").click()
    page.get_by_role("link", name=re.compile("Teaches nothing")).click()
    page.get_by_role("link", name="oslo day").click()
    expect(page.locator("#verdict")).to_contain_text("all 3 rewards are 0.500")
    expect(page.locator("#verdict")).to_contain_text("0 for every one of them")
    expect(page.locator(".alike > summary")).to_have_text("11 entries are alike in both; they do not part")
    page.locator(".alike > summary").click()
    expect(page.locator(".alike")).to_contain_text("The last 8 of them; each run has all.")
    expect(page.get_by_text("Nothing further.")).to_have_count(0)


def test_runs_stand_side_by_side_from_where_they_part(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/groups/one?key=lisbon%20weekend")
    expect(page.locator(".alike > summary")).to_contain_text("10 entries are alike in both; here they part")
    columns = page.locator(".beside section")
    expect(columns).to_have_count(2)
    expect(columns.nth(0)).to_contain_text("the tile museum")
    expect(columns.nth(0)).to_contain_text("It names sights and a hotel with rooms.")
    expect(columns.nth(1)).to_contain_text("I would rather not plan this.")
    expect(columns.nth(1)).to_contain_text("It refuses the task.")
    page.get_by_role("checkbox").nth(1).check()
    page.get_by_role("button", name="Compare the chosen").click()
    expect(page.locator(".beside section")).to_have_count(3)


def test_a_group_tells_who_judged_and_how_stale_its_runs_are(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/groups/one?key=lisbon%20weekend")
    best = page.locator("tbody tr").first
    expect(best).to_contain_text("0.950 ruler by judge: It names sights")
    expect(best).to_contain_text("+0.408")
    expect(best).to_contain_text("27 steps")
    expect(best).to_contain_text("policy@30")


def test_rewards_that_no_float_holds_the_sum_of_have_a_mean() -> None:
    assert exact_mean([1e308, 1e308]) == 1e308
    assert exact_mean([1.7e308, -1.7e308, 1.7e308]) == pytest.approx(1.7e308 / 3)
    assert exact_mean([0.1] * 10) == 0.1


def test_curves_are_drawn_and_a_point_opens_its_step(page: Page) -> None:
    page.get_by_role("link", name="Training").click()
    expect(page.locator("#daemon")).to_contain_text("waits for groups to train on")
    expect(page.locator("#daemon")).to_contain_text("3 in a group of equal rewards")
    expect(page.locator("#daemon")).to_contain_text("policy@20")  # not the newest: rolled back
    expect(page.locator("tr", has_text="policy@20").locator(".tag")).to_have_text("served")
    plots = page.locator(".chart canvas")
    expect(plots.nth(7)).to_be_visible()
    phases = page.locator(".chart", has_text="Seconds by phase")
    lines = json.loads(phases.get_attribute("data-lines") or "")
    assert [name for name, _ in lines] == ["rollout_s", "score_s", "train_s", "publish_s"]  # as coloured in the caption
    over = page.locator(".chart .u-over").first
    box = over.bounding_box()
    assert box is not None
    over.click(position={"x": box["width"] - 2, "y": box["height"] / 2})
    page.wait_for_url("**/training/step?policy=policy&step=30")
    expect(page.locator("tbody tr[id]")).to_have_count(3)
    page.locator("tbody tr[id]").first.get_by_role("link", name="travel_desk:plan").click()
    expect(page.locator("h1")).to_contain_text("travel_desk:plan")


def test_each_curve_is_there_by_name_with_the_numbers_of_its_steps(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/training?policy=policy")
    last = {step.step: step for step in viewer.store.policy_steps("policy")}[30].metrics
    curves = {
        "Evaluation": (),
        "Reward": ("reward_mean",),
        "Spread": ("reward_spread",),
        "Entropy": ("entropy",),
        "KL": ("kl",),
        "Clipped": ("clip_fraction",),
        "Log-probability difference": ("logprob_difference_mean", "logprob_difference_max"),
        "Throughput": ("tokens_per_second",),
        "Seconds by phase": ("rollout_s", "score_s", "train_s", "publish_s"),
        "Loss and gradient": ("loss", "grad_norm"),
        "Groups": ("groups", "groups_equal"),
    }
    charts = page.locator(".chart")
    expect(charts).to_have_count(len(curves))
    assert [chart.get_attribute("aria-label") for chart in charts.all()] == list(curves)
    for chart, names in zip(charts.all(), curves.values(), strict=True):
        chart.press("End")
        said = chart.get_by_role("status").inner_text()
        assert said.startswith("policy@30: ")
        for name in names or ("val/reward",):
            [shown] = re.findall(rf"\b{name} (-?[\d.e-]+)", said)
            assert float(shown) == pytest.approx(last.get(name, 0.81), rel=1e-3)


def test_versions_have_what_they_were_evaluated_with(viewer: Viewer) -> None:
    client = TestClient(create_app(viewer.store, KEY), base_url="http://localhost")
    shown = client.get("/training", headers={"authorization": f"Bearer {KEY}"}).text
    assert re.search(r'id="step-30".*?val/reward <b>0.81', shown, re.DOTALL)
    assert re.search(r'id="step-0".*?policy@0</b>.*?base model.*?val/reward <b>0.31', shown, re.DOTALL)
    assert 'data-title="Evaluation"' in shown
    assert "val/runs" not in shown


def test_runs_count_for_the_version_that_answered_in_them() -> None:
    """While a step is made the version before it goes on answering: what is trained on then is a version older."""
    numbers = {"reward_mean": 0.25, "staleness_mean": 0.0}, {"reward_mean": 0.5, "staleness_mean": 1.0}
    made = [PolicyStep(policy="p", step=n, adapter="", metrics=one) for n, one in enumerate((*numbers, {}), 1)]
    forked = replace(made[0], policy="mine", method="fork", forked_from="p@1")
    rows = [versions(one[0].policy, one, {0: {"val/reward": 0.1}}) for one in (made, [forked])]
    assert [[(row.name, row.earned) for row in of_policy] for of_policy in rows] == [
        [("p@3", None), ("p@2", None), ("p@1", None), ("p@0", 0.375)],
        [("mine@1", None), ("mine@0", None)],
    ]


def test_a_killed_server_serves_nothing_even_if_another_process_has_its_number(viewer: Viewer) -> None:
    client = TestClient(create_app(viewer.store, KEY), base_url="http://localhost")
    lock = viewer.store.data.serving_lock
    try:
        with lock.open("w") as held:
            assert acquire(held.fileno())
            assert 'class="tag">served' in client.get("/training", headers={"authorization": f"Bearer {KEY}"}).text
        assert 'class="tag">served' not in client.get("/training", headers={"authorization": f"Bearer {KEY}"}).text
    finally:
        lock.unlink()


def test_a_killed_daemon_does_nothing_even_if_another_process_has_its_number(viewer: Viewer) -> None:
    client = TestClient(create_app(viewer.store, KEY), base_url="http://localhost")
    lock = viewer.store.data.policies / "policy" / "train.lock"
    try:
        with lock.open("w") as held:
            assert acquire(held.fileno())
            shown = client.get("/training", headers={"authorization": f"Bearer {KEY}"}).text
            assert "waits for groups to train on" in shown
        shown = client.get("/training", headers={"authorization": f"Bearer {KEY}"}).text
        assert "killed while in wait" in shown
    finally:
        lock.unlink()


def summary(number: int, reward: float | None = None, **changes: object) -> TrajectorySummary:
    id = f"run{number}"
    given = () if reward is None else (Reward(id=f"r{number}", trajectory_id=id, value=reward),)
    made = TrajectorySummary(
        id=id, revision="1", entry="agent", group="g", tags=(), metadata={}, start_ns=number, end_ns=number, agents=1,
        calls=1, tool_calls=0, captured_tokens=9, trained_tokens=9, quarantined={}, policy_versions=(), rewards=given,
        error=None, incomplete="",
    )  # fmt: skip
    return replace(made, **changes)


def judged(first: int, *scores: float) -> list[TrajectorySummary]:
    """Runs that one judgement scored."""
    return [
        summary(number, rewards=(Reward("", f"run{number}", value, source=JUDGE, judgement_id=f"of {first}"),))
        for number, value in enumerate(scores, start=first)
    ]


def test_what_a_group_teaches_is_said_in_words() -> None:
    incomplete = summary(3, 0.5, incomplete="3 of 4 spans missing")
    held_out = summary(4, 0.7, tags=("held-out",))
    without_tokens = {"trained_tokens": 0, "quarantined": {"no token ids": 2}}
    for runs, words, teaches in (
        ([summary(1, 0.1), summary(2, 0.9)], "0.800 apart", True),
        ([summary(1, 0.1), summary(2, 0.9), incomplete], "Left out: 1 incomplete", True),
        ([summary(1, 0.4), summary(2, 0.4)], "all 2 rewards are 0.400", False),
        ([*judged(1, 0.9, 0.7), *judged(3, 0.1, 0.2)], "0.200 apart within each of the 2 judgements", True),
        ([*judged(1, 0.9, 0.9), *judged(3, 0.1, 0.1)], "all 4 rewards are 0.900 and 0.100", False),
        ([summary(1, 0.4), summary(2)], "only 1 of 2 runs", False),
        ([summary(1), summary(2)], "no run has a reward", False),
        ([incomplete], "no run of it may be trained on. Left out: 1 incomplete", False),
        ([held_out, summary(1, 0.1), summary(2, 0.9)], "0.800 apart. Left out: 1 held out from training", True),
        ([held_out, summary(1, 0.1)], "only 1 of 2 runs", False),
        ([summary(1, 0.1, **without_tokens), summary(2, 0.9, **without_tokens)], "4 x no token ids", False),
    ):
        said, does = what_it_teaches(runs)
        assert words in said
        assert does is teaches


def test_a_group_that_is_held_out_shows_its_rewards() -> None:
    """It said that none of them was rewarded."""
    held_out = [summary(number, reward, tags=("held-out",)) for number, reward in ((1, 0.25), (2, 0.75))]
    row = group_row("g", held_out)
    assert (row.rewarded, row.mean, row.spread, row.teaches) == (2, 0.5, 0.5, False)
    assert sum(each.count for each in row.bins) == 2
    row = group_row("g", [*held_out, summary(3, 0.1), summary(4), summary(5, 0.9, incomplete="a span is missing")])
    assert (row.rewarded, row.mean, row.spread) == (4, 0.1, 0.0), "summed up is what training compares"
    row = group_row("g", [summary(1, 0.9, incomplete="a span is missing")])
    assert (row.rewarded, row.mean) == (1, None)


def test_a_step_was_made_from_the_runs_that_it_did_not_set_aside(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*recorded_group("good", [0.0, 1.0]), *recorded_group("equal", [1.0, 1.0])])
        runs = sorted(store.summaries(), key=lambda run: run.id, reverse=True)
        taken = tuple(Consumed(run.id, run.revision, set_aside=run.group == "equal") for run in runs)
        store.append([PolicyStep("p", 1, "", taken, method="grpo")])
        client = TestClient(create_app(store, KEY), base_url="http://localhost")
        shown = {
            address: client.get(address, headers={"authorization": f"Bearer {KEY}"}).text
            for address in (
                "/training/step?policy=p&step=1",
                "/training",
                "/groups/one?key=equal",
                "/runs/equal-0/tokens",
            )
        }
    step, training, group, tokens = shown.values()
    assert "made from 2 runs" in step
    assert set(re.findall(r'id="run-([\w-]+)"', step)) == {"good-0", "good-1"}
    assert "2 runs more were set aside" in step
    assert re.search(r'<td class="n">2 runs</td>', training)
    assert "p@1" not in group
    assert "By no step yet." in tokens


def test_a_large_group_is_summed_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each run: a group of 10,000 took 16 s."""
    summed: list[int] = []
    fsum = math.fsum

    def counted(values: Collection[float]) -> float:
        summed.append(len(values))
        return fsum(values)

    runs = [summary(number, number / 9) for number in range(50)]
    monkeypatch.setattr("arttrace.views.web.models.tokens.token_page.math.fsum", counted)
    found = members(runs, {}, {})
    assert summed.count(50) == 1  # the others are sums of one run's rewards
    assert [one.advantage for one in found][:2] == pytest.approx([24.5 / 9, 23.5 / 9])


def test_groups_of_several_sources_that_would_be_named_alike_are_told_apart() -> None:
    runs = [
        summary(number, entry=entry, group=f"{entry}/{task}")
        for number, (entry, task) in enumerate((("monday", "7"), ("tuesday", "7"), ("monday", "8"), ("monday", " ")))
    ]
    assert {row.key: row.name for row in group_rows(runs)} == {
        "monday/7": "monday/7", "tuesday/7": "tuesday/7", "monday/8": "8", "monday/ ": "monday/",
    }  # fmt: skip


def test_a_histogram_counts_every_finite_reward() -> None:
    assert histogram([]) == ()
    bins = histogram([0.0, 0.5, 1.0, 1.0, float("inf")])
    assert sum(bin.count for bin in bins) == 4
    assert bins[-1].count == 2
    assert max(bin.height for bin in bins) == 100
    assert histogram([-3.0, 5.0])[0].low == -3.0
    assert histogram([-1e308, 1e308]) == ()

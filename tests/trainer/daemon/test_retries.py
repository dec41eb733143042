"""What may pass is waited for: a gateway, a full disk, a judge; over HTTP where it is a judge."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_site import Site, StandInGateway, until
from recorded_runs import cut_to, recorded_group

from arttrace.records import semconv
from arttrace.rewards.judge_calls import ATTEMPTS
from arttrace.rewards.judge_errors import JudgeDown
from arttrace.rewards.judge_prompt import parse_prompt
from trainer.daemon.scoring import JudgeTerms
from trainer.daemon.state import PlannedGroup
from trainer.daemon.unscored import UnscoredGroups
from trainer.serving import PublishReport
from trainer.serving.client import GatewayGone


def test_a_gateway_that_restarts_is_waited_for_and_reported_once(site: Site) -> None:
    site.group("g", 0.0, 1.0)
    site.gateway.gone = 3
    daemon = site.run(max_steps=1)
    assert site.said == ["starting: waiting, because the gateway does not answer", "starting: going on"]
    site.gateway.gone = 0
    assert (site.gateway.step, daemon.state.reason) == (1, "policy@1 is there, as was asked for")


def test_a_version_that_could_not_be_published_is_published_by_the_next_start(site: Site) -> None:
    site.group("g", 0.0, 1.0)
    daemon = site.daemon()
    runner = threading.Thread(target=daemon.run)

    def dead(step: int, path: Path) -> PublishReport:
        raise GatewayGone("the gateway does not answer")

    site.gateway.publish = dead  # type: ignore[method-assign]
    runner.start()
    until(lambda: daemon.state.state == "publish" and "does not answer" in daemon.state.reason)
    site.stop.set()
    runner.join(120)
    assert site.store.policy_steps("policy") == []
    site.stop.clear()
    site.gateway = StandInGateway()
    site.run(max_steps=1)
    assert site.gateway.step == 1
    assert [step.step for step in site.store.policy_steps("policy")] == [1]
    assert site.learner.trained == [{"g-0", "g-1"}]


def test_a_full_disk_is_waited_for_with_the_step_in_memory(site: Site) -> None:
    site.learner.full = 2
    site.group("g", 0.0, 1.0)
    site.run(max_steps=1)
    assert site.learner.trained == [{"g-0", "g-1"}]
    assert len(site.said) == 2
    assert "No space left on device" in site.said[0]
    assert [path.name for path in site.checkpoints.path(1).iterdir() if path.name == "half"] == []


def test_a_judge_that_is_down_is_waited_for_and_asked_once_per_group(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_server.script += [judge_server.fails(503, "overloaded")] * 5
    site.group("g", None, None)
    scores = iter([0.25, 0.75])

    def scored(request: dict[str, Any]) -> list[dict[str, Any]]:
        ids = parse_prompt(request["messages"][1]["content"])
        return [{"trajectory_id": id, "explanation": "", "score": next(scores)} for id in ids]

    monkeypatch.setattr(type(judge_server), "scores", staticmethod(scored))
    site.run(JudgeTerms("openai/stand-in", judge_server.url), max_steps=1)
    assert site.said[0].startswith("score: waiting, because the judge openai/stand-in")
    assert site.said[1] == "score: going on"
    assert len(judge_server.requests) == 6
    [step] = site.store.policy_steps("policy")
    assert step.metrics["reward_mean"] == 0.5
    assert step.metrics["judge_tokens"] == 110
    assert site.states.count("score") == 2, "each time that it is asked, the next groups are chosen anew"


def test_a_group_that_the_judge_cannot_score_is_not_paid_for_again_while_another_waits(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one answers is unusable, and for the other the judge is overloaded for a while."""
    overloaded = [judge_server.fails(503, "overloaded")] * 9
    asked: list[str] = []

    def answer(request: dict[str, Any]) -> tuple[int, Any]:
        key = "bad" if "bad" in request["messages"][1]["content"] else "good"
        asked.append(key)
        if key == "bad":
            return judge_server.says("no idea")(request)
        if overloaded:
            return overloaded.pop()(request)
        first, second = parse_prompt(request["messages"][1]["content"])
        scores = [{"trajectory_id": id, "explanation": "", "score": score} for id, score in ((first, 0), (second, 1))]
        return judge_server.says(json.dumps({"scores": scores}))(request)

    monkeypatch.setattr(judge_server, "answer", answer)
    site.group("bad", None, None)
    site.group("good", None, None, at=5000)
    site.run(JudgeTerms("openai/stand-in", judge_server.url), min_groups=2, max_wait=0.01, max_steps=1)
    assert asked.count("good") == 10
    assert asked.count("bad") == ATTEMPTS
    assert [line for line in site.said if line.startswith("not scored: ")] == [
        line for line in site.said if "bad" in line
    ]
    assert sorted(site.consumed()) == ["good-0", "good-1"]


def scored_by(judge_server: Any, monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], bool]) -> list[str]:
    """The judge ranks every group but those of a key for which `fails` holds: there it is overloaded. The keys that it
    was asked about."""
    asked: list[str] = []

    def answer(request: dict[str, Any]) -> tuple[int, Any]:
        [key] = {found for found in ("bad", "good", "more") if found in request["messages"][1]["content"]}
        asked.append(key)
        if fails(key):
            return judge_server.fails(503, "overloaded")(request)
        ids = parse_prompt(request["messages"][1]["content"])
        scores = [{"trajectory_id": id, "explanation": "", "score": n / 2} for n, id in enumerate(ids)]
        return judge_server.says(json.dumps({"scores": scores}))(request)

    monkeypatch.setattr(judge_server, "answer", answer)
    return asked


def test_a_group_whose_judgement_always_fails_holds_up_no_other(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scored_by(judge_server, monkeypatch, lambda key: key == "bad")
    site.group("bad", None, None)
    site.group("good", None, None, at=5000)
    daemon = site.daemon(JudgeTerms("openai/stand-in", judge_server.url))
    runner = threading.Thread(target=daemon.run)
    runner.start()
    try:
        until(lambda: daemon.state.step == 1 and len(daemon.state.unscored) == 1)
        site.group("more", None, None, at=9000)
        until(lambda: daemon.state.step == 2)
    finally:
        site.stop.set()
        runner.join(120)
    assert asked.count("bad") == 2 * ATTEMPTS, "the second time it is known that the judge answers about others"
    [unscored] = daemon.state.unscored
    assert (unscored.key, unscored.times, daemon.state.queue.unscored) == ("bad", 1, 1)
    assert "overloaded" in unscored.reason
    assert 0 < unscored.until_ns - time.time_ns() < 60e9
    assert [line for line in site.said if line.startswith("not scored for 1 min 0 s: bad: the judge")]
    assert sorted(site.consumed()) == ["good-0", "good-1", "more-0", "more-1"]


def test_a_group_that_was_not_scored_is_waited_for_longer_each_time_and_trained_when_it_is(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it others are scored: these stay ready for the step that takes its place."""
    monkeypatch.setattr("trainer.daemon.unscored.FIRST_S", 1.0)
    monkeypatch.setattr("trainer.daemon.unscored._RESTS", 0)  # whatever the judge's stand-in takes
    left = iter(range(2 * ATTEMPTS))
    asked = scored_by(judge_server, monkeypatch, lambda key: key == "bad" and next(left, None) is not None)
    site.group("bad", None, None)
    site.group("good", None, None, at=5000)
    site.run(JudgeTerms("openai/stand-in", judge_server.url), min_groups=2, max_steps=1)
    assert asked.count("bad") == 2 * ATTEMPTS + 1
    assert asked.count("good") == 1
    waits = [line.split(": ")[:2] for line in site.said]
    assert waits == [["not scored for 1 s", "bad"]] * 2, "no longer, where the judge did not answer meanwhile"
    assert sorted(site.consumed()) == ["bad-0", "bad-1", "good-0", "good-1"]


def test_scored_groups_are_not_held_up_by_one_that_never_is(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.daemon.unscored.FIRST_S", 1.0)
    scored_by(judge_server, monkeypatch, lambda key: key == "bad")
    site.group("bad", None, None)
    site.group("good", None, None, at=5000)
    site.run(JudgeTerms("openai/stand-in", judge_server.url), min_groups=2, max_wait=0.5, max_steps=1)
    assert sorted(site.consumed()) == ["good-0", "good-1"]


def test_a_group_whose_judgement_takes_long_to_fail_is_asked_about_the_more_seldom() -> None:
    """One that times out at every attempt takes 40 minutes, in which nothing else is done."""
    unscored = UnscoredGroups(threading.Event(), lambda error: None, lambda line: None)
    unscored.take({"g": JudgeDown("down")}, ["h"], others_scored=False, took_s=2400.0)
    [one] = unscored.waiting()
    assert 9500 < (one.until_ns - time.time_ns()) / 1e9 <= 9600


@pytest.mark.parametrize(("outcomes", "times"), [("fff", []), ("fgf", [1]), ("fgfgf", [2]), ("fgfgsf", [])])
def test_what_counts_against_a_group(outcomes: str, times: list[int]) -> None:
    """f: the judge failed for it; s: it was scored; g: another one was."""
    stop = threading.Event()
    stop.set()
    unscored = UnscoredGroups(stop, lambda error: None, lambda line: None)
    for outcome in outcomes:
        unscored.take(
            {"g": JudgeDown("down")} if outcome == "f" else {}, {"s": ["g"], "g": ["h"]}.get(outcome, []), False
        )
    assert [one.times for one in unscored.waiting()] == times
    ready = [PlannedGroup("g", ()), PlannedGroup("i", ())]
    assert [one.key for one in unscored.in_turn(ready)] == ["i", "g"]


def test_a_daemon_that_stops_while_the_judge_is_down_says_that_it_was_asked_to(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored_by(judge_server, monkeypatch, lambda key: True)
    site.group("good", None, None)
    daemon = site.daemon(JudgeTerms("openai/stand-in", judge_server.url))
    runner = threading.Thread(target=daemon.run)
    runner.start()
    until(lambda: "overloaded" in daemon.state.reason)
    site.stop.set()
    runner.join(120)
    assert (daemon.state.state, daemon.state.reason) == ("stopped", "asked to stop")


def test_a_judge_without_a_key_ends_it_and_nothing_is_consumed(site: Site, judge_server: Any) -> None:
    judge_server.script += [judge_server.fails(401, "no key")]
    site.group("g", None, None)
    daemon = site.daemon(JudgeTerms("openai/stand-in", judge_server.url), max_steps=1)
    with pytest.raises(Exception, match="needs a key"):
        daemon.run()
    assert (daemon.state.state, site.consumed()) == ("failed", [])
    assert daemon.state.plan is not None


def test_runs_that_cannot_be_read_are_not_judged_and_wait_for_a_reward(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is judged once enough of its runs can be; what GRPO compares by code's rewards need not be readable."""

    def scored(request: dict[str, Any]) -> list[dict[str, Any]]:
        ids = parse_prompt(request["messages"][1]["content"])
        return [{"trajectory_id": id, "explanation": "", "score": n / 2} for n, id in enumerate(ids)]

    monkeypatch.setattr(type(judge_server), "scores", staticmethod(scored))
    cut = cut_to(recorded_group("g", [None, None, None]), 30)
    site.store.append([record for record in cut if record.attributes[semconv.TRAJECTORY_ID] != "g-2"])  # type: ignore[union-attr]
    terms = JudgeTerms("openai/stand-in", judge_server.url)
    daemon = site.run(terms)
    assert daemon.state.queue.left_out == {"messages that cannot be read": 2}
    assert (judge_server.requests, site.consumed()) == ([], [])
    site.group("h", None, None, at=5000)
    site.store.append(cut_to(recorded_group("h", [None, None, None], at=5000)[-3:], 30))
    site.stop.clear()
    site.run(terms, max_steps=1)
    [request] = judge_server.requests
    assert len(parse_prompt(request["messages"][1]["content"])) == 2
    assert sorted(site.consumed()) == ["h-0", "h-1"]

    site.store.append(cut_to(recorded_group("k", [0.0, 1.0], at=9000), 30))
    site.stop.clear()
    site.run(max_steps=2)
    assert sorted(site.consumed()) == ["h-0", "h-1", "k-0", "k-1"]

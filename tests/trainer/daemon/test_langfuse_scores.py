"""The scores that the daemon's judge gives reach Langfuse while it trains, and Langfuse never holds it up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from daemon_site import Site, until
from langfuse_server import LangfuseServer, langfuse_server

from arttrace.capture.base.langfuse_project import Connection
from arttrace.rewards.judge_prompt import parse_prompt
from arttrace.store.access.run_spans import spans_of_runs
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.push import push
from arttrace.views.langfuse.state import SentRuns
from trainer.daemon.scoring import JudgeTerms


@pytest.fixture(autouse=True)
def different_scores(judge_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def scored(request: dict[str, Any]) -> list[dict[str, Any]]:
        ids = parse_prompt(request["messages"][1]["content"])
        return [{"trajectory_id": id, "explanation": f"place {n}", "score": n / 2} for n, id in enumerate(ids)]

    monkeypatch.setattr(type(judge_server), "scores", staticmethod(scored))


def live(monkeypatch: pytest.MonkeyPatch, server: LangfuseServer, **changes: str) -> None:
    for name, value in {**server.environ(), "ARTTRACE_LANGFUSE": "1", **changes}.items():
        monkeypatch.setenv(name, value)


def test_the_daemons_scores_are_there_before_it_ends_and_are_those_of_a_push(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.group("a", None, None)
    site.group("b", None, None, at=2000)
    with langfuse_server() as server:
        live(monkeypatch, server)
        while_training: list[int] = []
        step = site.learner.step

        def looked_at(*samples: Any, **given: Any) -> Any:
            until(lambda: len(server.scores) == 2 * (len(while_training) + 1))
            while_training.append(len(server.scores))
            return step(*samples, **given)

        site.learner.step = looked_at  # type: ignore[method-assign]
        site.run(JudgeTerms("openai/stand-in", judge_server.url), max_steps=2)
        assert while_training == [2, 4], "the scores of a step's groups, without waiting for the daemon's end"
        shown = dict(server.scores)
        rewards = [one for run in site.store.summaries() for one in run.rewards]
        assert {(one["value"], one["comment"]) for one in shown.values()} == {
            (one.value, one.explanation) for one in rewards
        }
        assert {json.loads(one["metadata"]["arttrace_reward"])["id"] for one in shown.values()} == {
            one.id for one in rewards
        }
        roots = spans_of_runs(site.store, [one.trajectory_id for one in rewards])
        assert {one["traceId"] for one in shown.values()} == {spans[0].trace_id for spans in roots.values()}
        connection = Connection.resolve(server.environ())
        with LangfuseClient(connection) as client:
            push(site.store, client, connection, SentRuns(site.data, connection))
        assert {key: one for key, one in server.scores.items() if one["name"] == "ruler"} == shown


def test_without_langfuse_it_trains_and_the_next_start_delivers(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.group("a", None, None)
    with langfuse_server() as server:
        live(monkeypatch, server)
        server.script += [lambda path, body: (503, {}, b"")] * 1000
        site.run(JudgeTerms("openai/stand-in", judge_server.url), max_steps=1)
        assert sorted(site.consumed()) == ["a-0", "a-1"]
        assert not server.scores
        server.script.clear()
        site.group("b", None, None, at=2000)
        site.stop.clear()
        site.run(JudgeTerms("openai/stand-in", judge_server.url), max_steps=2)
        until(lambda: len(server.scores) == 4)
        values = {one.value for run in site.store.summaries() for one in run.rewards}
        assert {one["value"] for one in server.scores.values()} == values

"""A push and a pull whose process is killed on the way: the next one goes on, and everything is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from langfuse_server import Answer, LangfuseServer, langfuse_server
from recorded_runs import recorded_group
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir

IN_SMALL_STEPS = """
from arttrace.commands import main
from arttrace.views.langfuse import pull, push
push._SPANS_AT_ONCE = pull._OBSERVATIONS_OF_PAGE = 8
pull._SCORES_OF_PAGE = 2
main()
"""


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0, 0.5]))
        for name in ("one", "two"):
            store.append([*research_run(name, "s"), Reward(id=name, trajectory_id=name, value=1.0)])
    return data


@pytest.fixture
def server() -> Iterator[LangfuseServer]:
    with langfuse_server() as started:
        yield started


def killed(server: LangfuseServer, data: DataDir, what: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in small steps, killed while its second request to `place` of the server is answered."""
    answering, asked = getattr(server, place), 0
    command = [sys.executable, "-c", IN_SMALL_STEPS, "langfuse", what, "--dir", str(data.root)]
    with subprocess.Popen(command, env={**os.environ, **server.environ()}) as process:

        def answered(given: Any) -> Answer | None:
            nonlocal asked
            asked += 1
            answer: Answer = answering(given)
            if asked < 2:
                return answer
            process.kill()
            return None

        with monkeypatch.context() as patched:
            patched.setattr(server, place, answered)
            assert process.wait(240) == -signal.SIGKILL


def shown(server: LangfuseServer, data: DataDir, what: str) -> dict[str, Any]:
    """What the command says of itself when it goes on to its end."""
    done = CliRunner().invoke(cli, ["langfuse", what, "--json", "--dir", str(data.root)], env=server.environ())
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def everything(data: DataDir) -> tuple[list[bytes], list[Reward]]:
    """The spans, and the rewards, that the store holds; one that is there twice stands here twice."""
    with Store.open(data) as store:
        runs = store.summaries()
        spans = sorted(msgspec.json.encode(span) for run in runs for span in store.spans(run.id))
        return spans, sorted((one for run in runs for one in run.rewards), key=lambda one: (one.trajectory_id, one.id))


@pytest.mark.parametrize("place", ["take_spans", "take_scores"])
def test_a_push_that_was_killed_goes_on_and_sends_again_what_it_had_not_noted_alone(
    place: str, data: DataDir, server: LangfuseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    taking = server.take_spans

    def take_spans(body: bytes) -> Answer:
        sent.extend(f"{span.trace_id}/{span.span_id}" for span in protobuf_spans(body))
        return taking(body)

    monkeypatch.setattr(server, "take_spans", take_spans)
    killed(server, data, "push", place, monkeypatch)
    before = len(sent)
    assert 0 < before < len(everything(data)[0])
    shown(server, data, "push")
    spans, _ = everything(data)
    assert len(set(sent)) == len(server.observations) == len(spans)
    assert 0 < len(sent) - len(spans) < before, "what was noted before the kill is not sent again"
    assert sorted(one["name"] for one in server.scores.values()) == [*["advantage"] * 5, *["reward"] * 5]
    assert shown(server, data, "push")["runs"] == 0


@pytest.mark.parametrize("place", ["list_observations", "list_scores"])
def test_a_pull_that_was_killed_goes_on_and_what_it_took_is_there_once(
    place: str, data: DataDir, server: LangfuseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(server, data, "push")
    copy = DataDir(tmp_path / "copy")
    killed(server, copy, "pull", place, monkeypatch)
    server.pages.clear()
    pulled = shown(server, copy, "pull")
    spans, rewards = everything(data)
    assert (pulled["observations"], pulled["scores"]) == (len(spans), len(rewards))
    assert everything(copy) == (spans, rewards)
    left = {"list_observations": len(spans) - 8 + len(server.scores), "list_scores": len(server.scores) - 2}
    assert sum(len(page["data"]) for page in server.pages) == left[place], "the page before the kill is not asked for"

"""Langfuse's own client asks the stand-in in the words in which a pull asks, and reads what it answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from langfuse.api import LangfuseAPI
from langfuse_server import PUBLIC, SECRET, LangfuseServer, langfuse_server
from recorded_runs import recorded_group

from arttrace.commands import cli
from arttrace.commands.data import langfuse
from arttrace.store import Store
from arttrace.system.paths import DataDir


def in_its_types(query: dict[str, str]) -> dict[str, Any]:
    """The query as arguments of a method of the client."""
    kinds: dict[str, Callable[[str], Any]] = {"limit": int, "fromTimestamp": datetime.fromisoformat}
    return {
        re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower(): kinds.get(name, str)(value) for name, value in query.items()
    }


@pytest.mark.parametrize(
    "conditions",
    [
        [],
        ["--from", "2000-01-01", "--to", "2030-01-01"],
        ["--tag", "a", "--name", "agent", "--session", "s", "--environment", "default", "--user", "u"],
    ],
)
def test_langfuses_own_client_asks_as_a_pull_does(
    conditions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(langfuse, "EVERY_S", 0.0)  # so that the total is asked for
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0, 0.5]))

    def arttrace(server: LangfuseServer, *arguments: str) -> None:
        done = CliRunner().invoke(cli, ["langfuse", *arguments], env=server.environ(), catch_exceptions=False)
        assert done.exit_code == 0, done.output

    with langfuse_server() as server:
        arttrace(server, "push", "--dir", str(tmp_path / "data"))
        for one in server.observations.values():
            one.update(tags=["a"], traceName="agent", sessionId="s", userId="u")
        server.queries.clear()
        arttrace(server, "pull", *conditions, "--dir", str(tmp_path / "copy"))
        ours, server.queries = server.queries, []
        client = LangfuseAPI(base_url=server.url, username=PUBLIC, password=SECRET)
        methods: dict[str, Callable[..., Any]] = {
            "/api/public/v2/observations": client.observations.get_many,
            "/api/public/v3/scores": client.scores.get_many,
            "/api/public/v2/metrics": client.metrics.metrics,
        }
        answers = [methods[path](**in_its_types(query)) for path, query in ours]
    assert {path for path, _ in ours} == {*methods} - ({"/api/public/v2/metrics"} if "--tag" in conditions else set())
    assert [(path, in_its_types(query)) for path, query in server.queries] == [
        (path, in_its_types(query)) for path, query in ours
    ]
    assert all(answer.data for answer in answers)

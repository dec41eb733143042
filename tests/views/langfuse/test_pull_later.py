"""A pull that goes on later with one that was cut off."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from langfuse_server import langfuse_server
from msgspec.structs import replace
from simulated_agent import research_run

from arttrace.capture.base.langfuse_project import Connection
from arttrace.commands import cli
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse import pull as pulling
from arttrace.views.langfuse.client import LangfuseAway, LangfuseClient
from arttrace.views.langfuse.state import PullCursor

HOUR = 3600 * 10**9


@pytest.mark.parametrize("within", ["--from", "--name"])
def test_a_pull_that_goes_on_later_takes_what_began_meanwhile_too(
    within: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--from 90m` every hour, of which one was cut off: no observation is between what the two of them ask for."""
    monkeypatch.setattr("arttrace.views.langfuse.client._TRIES", 1)
    monkeypatch.setattr(pulling, "_OBSERVATIONS_OF_PAGE", 3)
    monkeypatch.setattr(pulling, "_TRACES_OF_PAGE", 8)
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        for name, later in (("one", 0), ("two", HOUR), ("three", 2 * HOUR)):
            store.append(
                replace(span, start_ns=span.start_ns + later, end_ns=span.end_ns + later)
                for span in research_run(name, "s")
            )
            store.append([Reward(id=name, trajectory_id=name, value=1.0)])
    with langfuse_server() as server:
        pushed = CliRunner().invoke(cli, ["langfuse", "push", "--dir", str(data.root)], env=server.environ())
        assert pushed.exit_code == 0, pushed.output
        for item in server.observations.values():
            item["traceName"] = "research"
        begun = sorted(start for _, _, start in server.observations)
        connection = Connection.resolve(server.environ())
        other = DataDir(tmp_path / "other")
        routed, asked = server.list_observations, 0

        def cut_off(query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
            nonlocal asked
            asked += 1
            return routed(query) if asked < 3 else (503, {"content-type": "application/json"}, b"{}")

        def pulled(since: str, now: str) -> pulling.Pulled:
            clock = SimpleNamespace(now=lambda tz: datetime.datetime.fromisoformat(now))
            monkeypatch.setattr(pulling, "datetime", SimpleNamespace(datetime=clock, UTC=datetime.UTC))
            query = pulling.TraceQuery(since=since, name="research" if within == "--name" else None)
            with Store.open(other, create=True) as store, LangfuseClient(connection, sleep=lambda _: None) as client:
                return pulling.pull(store, client, query, PullCursor(other, connection, "of 90 minutes"))

        monkeypatch.setattr(server, "list_observations", cut_off)
        with pytest.raises(LangfuseAway):
            pulled(begun[0], begun[16])
        monkeypatch.setattr(server, "list_observations", routed)
        found = pulled(begun[8], datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="milliseconds"))
        assert (found.observations, found.scores) == (24, 3)
        with Store.open(other) as store:
            assert {run.id for run in store.summaries()} == {"one", "two", "three"}
            assert all(run.rewards for run in store.summaries())
        again = pulled(begun[8], datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="milliseconds"))
        assert again.observations == again.already_stored - again.scores == 16, "what was read to its end is no more"

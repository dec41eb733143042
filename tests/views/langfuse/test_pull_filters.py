"""`arttrace langfuse pull` with each of its filters: whole traces of what was asked for, and no other; also where it
goes on with one that was cut off."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from langfuse_server import LangfuseServer, langfuse_server
from msgspec.structs import replace
from simulated_agent import research_run

from arttrace.capture.base.langfuse_project import Connection
from arttrace.commands import cli
from arttrace.commands.data import langfuse
from arttrace.formats.imported_files import read_file
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse import pull as pulling
from arttrace.views.langfuse.client import LangfuseAway, LangfuseClient
from arttrace.views.langfuse.state import PullCursor

HOUR = 3600 * 10**9


def arttrace(server: LangfuseServer, data: DataDir, *arguments: str) -> dict[str, Any]:
    run = CliRunner().invoke(
        cli, ["langfuse", *arguments, "--json", "--dir", str(data.root)], env=server.environ(), catch_exceptions=False
    )
    assert run.exit_code == 0, run.output
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ({"traceName": "mine"}, ["--name", "mine"]),
        ({"sessionId": "mine"}, ["--session", "mine"]),
        ({"environment": "mine"}, ["--environment", "mine"]),
        ({"userId": "mine"}, ["--user", "mine"]),
        ({"userId": "mine", "tags": ["one", "two"]}, ["--user", "mine", "--tag", "one", "--tag", "two"]),
    ],
)
def test_what_one_observation_says_takes_its_whole_trace(
    changed: dict[str, Any], asked: list[str], tmp_path: Path
) -> None:
    data, other = DataDir(tmp_path / "data"), DataDir(tmp_path / "other")
    with Store.open(data, create=True) as store:
        store.append([*research_run("one", "s"), *research_run("two", "t")])
    with langfuse_server() as server:
        arttrace(server, data, "push")
        traces = sorted({trace for trace, _, _ in server.observations})
        for (trace, _, _), item in server.observations.items():
            if trace == traces[0] and item["parentObservationId"] is None:
                item.update(changed)
        wanted = sum(trace == traces[0] for trace, _, _ in server.observations)
        assert arttrace(server, other, "pull", *asked)["observations"] == wanted
        with Store.open(other) as store:
            assert {trace for (trace,) in store.sql("SELECT trace_id FROM spans")[1]} == {traces[0]}
        assert arttrace(server, DataDir(tmp_path / "none"), "pull", asked[0], "other")["observations"] == 0


def test_a_time_bounds_what_began_in_it(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        later = [
            replace(span, start_ns=span.start_ns + HOUR, end_ns=span.end_ns + HOUR) for span in research_run("two", "t")
        ]
        store.append([*research_run("one", "s"), *later])
    with langfuse_server() as server:
        arttrace(server, data, "push")
        first, last = min(begun := [start for _, _, start in server.observations]), max(begun)
        assert first < last
        for name, bounds, count in (
            ("all", ["--from", first], len(begun)),
            ("later", ["--from", last], begun.count(last)),
            ("earlier", ["--to", last], sum(start < last for start in begun)),
            ("none", ["--from", first, "--to", first], 0),
        ):
            pulled = arttrace(server, DataDir(tmp_path / name), "pull", *bounds)
            assert pulled["observations"] == count, name


def scored_traces(tmp_path: Path) -> DataDir:
    """Two runs of eight spans, an hour apart, of which each has a reward."""
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        for name, later in (("one", 0), ("two", HOUR)):
            store.append(
                replace(span, start_ns=span.start_ns + later, end_ns=span.end_ns + later)
                for span in research_run(name, "s")
            )
            store.append([Reward(id=name, trajectory_id=name, value=1.0)])
    return data


def test_of_a_time_the_scores_of_its_traces_are_taken_and_no_others(tmp_path: Path) -> None:
    """A score is younger than its trace: the time that is asked for is that of the traces."""
    with langfuse_server() as server:
        arttrace(server, scored_traces(tmp_path), "push")
        begun = sorted(start for _, _, start in server.observations)
        first, second = begun[0], begun[8]
        for name, bounds, rewarded in (
            ("to", ["--to", second], {"one"}),
            ("from", ["--from", second], {"two"}),
            ("both", ["--from", first, "--to", second], {"one"}),
            ("none", ["--to", first], set()),
        ):
            other = DataDir(tmp_path / name)
            pulled = arttrace(server, other, "pull", *bounds)
            assert (pulled["observations"], pulled["scores"]) == (8 * len(rewarded), len(rewarded)), name
            with Store.open(other) as store:
                assert {id for (id,) in store.sql("SELECT trajectory_id FROM rewards")[1]} == rewarded


def test_scores_of_a_trace_that_takes_several_pages_are_asked_for_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "_OBSERVATIONS_OF_PAGE", 3)
    with langfuse_server() as server:
        arttrace(server, scored_traces(tmp_path), "push")
        pulled = arttrace(server, DataDir(tmp_path / "other"), "pull", "--environment", "default")
        assert (pulled["observations"], pulled["scores"]) == (len(server.observations), 2)
        assert server.count("/api/public/v3/scores") == 1


@pytest.mark.parametrize("answered", [3, 7])
def test_a_pull_by_a_condition_that_was_cut_off_counts_nothing_twice(
    answered: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off within the first of its pages of traces, and within the second."""
    monkeypatch.setattr("arttrace.views.langfuse.client._TRIES", 1)
    monkeypatch.setattr(pulling, "_TRACES_OF_PAGE", 8)
    monkeypatch.setattr(pulling, "_OBSERVATIONS_OF_PAGE", 3)
    other = DataDir(tmp_path / "other")
    with langfuse_server() as server:
        arttrace(server, scored_traces(tmp_path), "push")
        routed, asked = server.list_observations, 0

        def cut_off(query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
            nonlocal asked
            asked += 1
            return routed(query) if asked <= answered else answers_503("", b"")

        monkeypatch.setattr(server, "list_observations", cut_off)
        pull = ["langfuse", "pull", "--environment", "default", "--dir", str(other.root)]
        assert CliRunner().invoke(cli, pull, env=server.environ()).exit_code == 1
        monkeypatch.setattr(server, "list_observations", routed)
        pulled = arttrace(server, other, "pull", "--environment", "default")
        assert (pulled["observations"], pulled["scores"]) == (len(server.observations), 2)


@pytest.mark.parametrize("name", ["LANGFUSE_BASE_URL", "LANGFUSE_HOST"])
def test_both_names_of_the_servers_address_are_taken(name: str) -> None:
    keys = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk-of-a-test"}
    assert Connection.resolve({**keys, name: "https://traces.example/"}).url == "https://traces.example"


def answers_503(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    return 503, {"content-type": "application/json"}, b"{}"


@pytest.mark.parametrize(
    ("asked", "is_counted", "shown"),
    [
        ([], True, "16 of 16 observations"),
        (["--name", "research"], True, "observations and"),
        ([], False, "16 observations and"),
    ],
)
def test_a_pull_says_how_much_is_left_where_the_server_can_count(
    asked: list[str], is_counted: bool, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages come without their number, which the metrics tell; that they cannot be had costs the number alone."""
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([*research_run("one", "s"), *research_run("two", "t")])
    monkeypatch.setattr(langfuse, "EVERY_S", 0.0)
    monkeypatch.setattr(pulling, "_OBSERVATIONS_OF_PAGE", 5)
    with langfuse_server() as server:
        arttrace(server, data, "push")
        if not is_counted:
            monkeypatch.setattr(server, "count_observations", lambda query: answers_503("", b""))
        run = CliRunner().invoke(
            cli, ["langfuse", "pull", *asked, "--dir", str(tmp_path / "other")], env=server.environ()
        )
        assert run.exit_code == 0, run.output
        lines = [line for line in run.stderr.splitlines() if "per second" in line]
        assert any(shown in line for line in lines), lines
        assert ("left" in lines[0]) == (not asked and is_counted)
        assert server.count("/api/public/v2/metrics") == (0 if asked else 1), "asked once"


def test_runs_without_a_time_are_among_those_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in the year 2000, long before there was Langfuse."""
    data = DataDir(tmp_path / "data")
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    talks = "".join(json.dumps({"messages": talk, "n": number}) + "\n" for number in range(8))
    with Store.open(data, create=True) as store:
        store.append(read_file(talks.encode(), "talks").records)
    monkeypatch.setattr(langfuse, "EVERY_S", 0.0)
    monkeypatch.setattr(pulling, "_OBSERVATIONS_OF_PAGE", 5)
    with langfuse_server() as server:
        arttrace(server, data, "push")
        shown = CliRunner().invoke(cli, ["langfuse", "pull", "--dir", str(tmp_path / "b")], env=server.environ()).stderr
    assert shown.startswith("5 of 16 observations and 0 scores"), shown


def test_what_cannot_be_read_is_not_left_and_no_time_is_reported_while_scores_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(langfuse, "EVERY_S", 0.0)
    progress = langfuse._PullProgress(None, lambda: 10)
    for observations, refused, scores in ((5, 1, 0), (8, 2, 0), (7, 0, 100)):
        progress(pulling.Pulled(observations=observations, refused=refused, scores=scores))
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("5 of 10 observations")
    assert first.endswith(" left")
    assert "left" not in second
    assert "left" not in third


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

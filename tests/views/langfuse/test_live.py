"""Langfuse while an agent runs: what is recorded goes there beside the local store, and neither waits for the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import serve
from langfuse_server import PUBLIC, SECRET, LangfuseServer, langfuse_server

from arttrace.capture.base.langfuse_project import Connection
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.pull import TraceQuery, pull
from arttrace.views.langfuse.push import push
from arttrace.views.langfuse.state import PullCursor, SentRuns

AGENT = """
import sys, openai, arttrace

client = openai.OpenAI(base_url=sys.argv[1], api_key="k")

@arttrace.tool
def look(q):
    return "found " + q

@arttrace.trajectory(tags=["beta"], metadata={"user_id": "u1", "session_id": "s1"})
def answer(question):
    client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": question}])
    look("x")
    return "done"

answer("hello")
arttrace.reward(1.0, trajectory_id="elsewhere")
arttrace.shutdown()
"""


def run_agent(folder: Path, server: LangfuseServer, program: str = AGENT, **environ: str) -> str:
    (folder / "agent.py").write_text(program)
    with serve() as chat:
        done = subprocess.run(
            [sys.executable, "agent.py", chat.url],
            cwd=folder,
            env={**os.environ, **server.environ(), "ARTTRACE_LANGFUSE": "1", **environ},
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
    return done.stderr


def test_spans_are_there_as_a_person_wants_to_see_them_and_stored_here_too(tmp_path: Path) -> None:
    with langfuse_server() as server:
        run_agent(tmp_path, server, LANGFUSE_TRACING_ENVIRONMENT="staging", LANGFUSE_RELEASE="r1")
        seen = {one["name"]: one for one in server.observations.values()}
        headers = [headers for _, path, headers in server.requests if path.endswith("/v1/traces")]
        connection, copy = Connection.resolve(server.environ()), DataDir(tmp_path / "copy")
        with Store.open(copy, create=True) as store, LangfuseClient(connection) as client:
            pull(store, client, TraceQuery(), PullCursor(copy, connection, "q"))
    assert [one["type"] for _, one in sorted(seen.items())] == ["GENERATION", "TOOL", "AGENT"]
    assert json.loads(seen["chat gpt-4o"]["input"]) == [{"role": "user", "content": "hello"}]
    for one in seen.values():
        context = [one[name] for name in ("traceName", "tags", "userId", "sessionId", "environment", "release")]
        assert context == ["answer", ["beta"], "u1", "s1", "staging", "r1"]
    assert headers
    assert all(one["x-langfuse-ingestion-version"] == "4" for one in headers)
    assert all(one["content-encoding"] == "gzip" for one in headers)
    with Store.open(DataDir(tmp_path / ".arttrace")) as store, Store.open(copy) as other:
        [here], [there] = store.trajectories(), other.trajectories()
        assert here == there
        assert not here.incomplete


@pytest.mark.parametrize(
    ("change", "said"),
    [({"LANGFUSE_SECRET_KEY": "wrong-secret-key"}, "401"), ({"LANGFUSE_PUBLIC_KEY": ""}, "LANGFUSE_PUBLIC_KEY is not")],
)
def test_what_langfuse_refuses_costs_the_agent_and_the_store_nothing(
    tmp_path: Path, change: dict[str, str], said: str
) -> None:
    with langfuse_server() as server:
        errors = run_agent(tmp_path, server, **change)
        assert not server.observations
    assert said in errors
    assert SECRET not in errors
    assert "wrong-secret-key" not in errors
    with Store.open(DataDir(tmp_path / ".arttrace")) as store:
        assert [run.incomplete for run in store.summaries()] == [""]


def test_a_mask_keeps_what_it_may_hide_out_of_the_names_of_a_run(tmp_path: Path) -> None:
    masked = AGENT.replace(
        "client = ", "arttrace.init(mask=lambda value, kind: None if kind == 'metadata' else value)\nclient = "
    )
    with langfuse_server() as server:
        run_agent(tmp_path, server, masked)
        assert len(server.observations) == 3
        assert {one["userId"] for one in server.observations.values()} == {None}


def test_keys_are_in_no_file_of_the_data_directory(tmp_path: Path) -> None:
    with langfuse_server() as server:
        run_agent(tmp_path, server)
    for file in (tmp_path / ".arttrace").rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes()
            assert PUBLIC.encode() not in file.read_bytes()


def test_langfuses_own_sdk_in_the_process_shares_the_trace(tmp_path: Path) -> None:
    """`@observe` around `@trajectory`, and inside it: one trace, whichever of the two began it."""
    beside = AGENT.replace(
        'answer("hello")',
        """
from langfuse import get_client, observe

@observe(name="outer")
def outer():
    return answer("hello")

@observe(name="inner")
def inner():
    return "inner"

@arttrace.trajectory
def around():
    client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "again"}])
    return inner()

outer()
around()
get_client().flush()
""",
    )
    with langfuse_server() as server:
        run_agent(tmp_path, server, beside)
        by_name = {one["name"]: one for one in server.observations.values()}
        assert by_name["outer"]["traceId"] == by_name["invoke_agent answer"]["traceId"]
        assert by_name["invoke_agent answer"]["parentObservationId"] == by_name["outer"]["id"]
        assert by_name["inner"]["traceId"] == by_name["invoke_agent around"]["traceId"]
        assert len({one["traceId"] for one in server.observations.values()}) == 2


SHARED = AGENT.replace(
    'answer("hello")',
    """
from langfuse import get_client, observe, propagate_attributes

@observe(name="outer")
def outer():
    with propagate_attributes(user_id="theirs", session_id="of theirs", tags=["their tag"]):
        return around()

@observe(name="inner")
def inner():
    return look("y")

@arttrace.trajectory(tags=["our tag"])
def around():
    client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "again"}])
    return inner()

@arttrace.trajectory(metadata={"user_id": "ours", "session_id": "of ours"}, tags=["our tag"])
def own():
    inner()
    with propagate_attributes(user_id="too late", tags=["later tag"]):
        look("z")
    with propagate_attributes(tags=["of a call"]):
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "and?"}])

outer()
own()
get_client().flush()
""",
)


def check_shared(folder: Path, **environ: str) -> None:
    """Either SDK's user, session and tags are on the other's spans."""
    with langfuse_server() as server:
        said = run_agent(folder, server, SHARED, **environ)
        seen = list(server.observations.values())
    assert "Traceback" not in said, said
    [first] = {one["traceId"] for one in seen if one["name"] == "outer"}
    theirs = [one for one in seen if one["traceId"] == first]
    ours = [one for one in seen if one["traceId"] != first]
    assert sorted(one["name"] for one in theirs) == [
        "chat gpt-4o", "execute_tool look", "inner", "invoke_agent around", "outer",
    ]  # fmt: skip
    for one in theirs:
        assert (one["userId"], one["sessionId"]) == ("theirs", "of theirs"), one["name"]
        assert set(one["tags"]) == {"their tag"} | ({"our tag"} if one["name"] != "outer" else set()), one["name"]
    assert sorted(one["name"] for one in ours) == [
        "chat gpt-4o", "execute_tool look", "execute_tool look", "inner", "invoke_agent own",
    ]  # fmt: skip
    for one in ours:
        assert (one["userId"], one["sessionId"]) == ("ours", "of ours"), one["name"]
        assert "our tag" in one["tags"], one["name"]
    [root] = [one for one in ours if one["name"] == "invoke_agent own"]
    assert set(root["tags"]) == {"our tag", "later tag", "of a call"}
    with Store.open(DataDir(folder / ".arttrace")) as store:
        runs = {run.entry.rpartition(":")[2]: run for run in store.summaries()}
    assert (runs["around"].tags, runs["around"].metadata) == (
        ("our tag", "their tag"),
        {"user_id": "theirs", "session_id": "of theirs"},
    )
    assert runs["own"].metadata == {"user_id": "ours", "session_id": "of ours"}


def test_user_session_and_tags_are_shared_with_langfuses_own_sdk(tmp_path: Path) -> None:
    check_shared(tmp_path)


@pytest.mark.full
def test_they_are_with_version_4_of_it_too(tmp_path: Path) -> None:
    site = tmp_path / "langfuse4"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
    subprocess.run([*command, "--target", str(site), "langfuse<5"], check=True, timeout=600)
    assert [path.name for path in site.glob("langfuse-4*")]
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    (tmp_path / "run").mkdir()
    check_shared(tmp_path / "run", PYTHONPATH=path)


REWARDED = AGENT.replace(
    'answer("hello")\n',
    """
with arttrace.trajectory(name="with one inside") as inside:
    arttrace.reward(0.25, name="inside")
arttrace.flush()
arttrace.reward(0.75, name="stars", trajectory_id=inside.id)
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
with TracerProvider().get_tracer("own").start_as_current_span("above"):
    with arttrace.trajectory(name="below another"):
        arttrace.reward(0.5, name="of a part")
""",
)


@pytest.mark.parametrize("takes_lists", [True, False])
def test_an_outcome_reported_after_the_run_is_the_score_that_a_push_sends(tmp_path: Path, takes_lists: bool) -> None:
    with langfuse_server(takes_lists=takes_lists) as server:
        run_agent(tmp_path, server, REWARDED, LANGFUSE_TRACING_ENVIRONMENT="staging")
        live = dict(server.scores)
        assert sorted((one["name"], one["value"]) for one in live.values()) == [
            ("inside", 0.25), ("of a part", 0.5), ("stars", 0.75),
        ]  # fmt: skip
        traces = {trace for trace, *_ in server.observations}
        assert {one["traceId"] for one in live.values()} == traces
        assert [one["name"] for one in live.values() if one.get("observationId")] == ["of a part"]
        connection = Connection.resolve({**server.environ(), "LANGFUSE_TRACING_ENVIRONMENT": "staging"})
        data = DataDir(tmp_path / ".arttrace")
        with Store.open(data) as store, LangfuseClient(connection) as client:
            push(store, client, connection, SentRuns(data, connection))
        pushed = {key: one for key, one in server.scores.items() if one["name"] != "advantage"}
        assert pushed == live


def test_a_score_that_langfuse_refuses_costs_no_span_and_no_other_score(tmp_path: Path) -> None:
    with langfuse_server() as server:
        said = run_agent(tmp_path, server, REWARDED.replace('name="stars"', 'name="refused"'))
        assert sorted(one["name"] for one in server.scores.values()) == ["inside", "of a part"]
        assert len(server.observations) == 2
    assert "langfuse refuses spans" in said
    with Store.open(DataDir(tmp_path / ".arttrace")) as store:
        assert len([reward for run in store.summaries() for reward in run.rewards]) == 3

"""Langfuse that refuses, hangs, dies, or is something else: a clear error, nothing lost, nothing sent twice."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from langfuse_server import SECRET, Answer, LangfuseServer, Script, langfuse_server
from recorded_runs import recorded_group
from simulated_agent import research_run

from arttrace.capture.base.langfuse_project import Connection
from arttrace.collector.otlp.responses import partial_success
from arttrace.commands import cli
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseAway, LangfuseClient, LangfuseError


def _always(status: int, body: bytes = b"{}", **headers: str) -> Script:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _path, _body: (status, {"content-type": "application/json", **named}, body)


def _client(server: LangfuseServer, waits: list[float] | None = None) -> LangfuseClient:
    kept: list[float] = [] if waits is None else waits
    return LangfuseClient(Connection.resolve(server.environ()), sleep=kept.append)


@pytest.mark.parametrize(
    ("status", "body", "type", "said", "hint"),
    [
        (401, b'{"message": "Invalid credentials"}', "application/json", "refused the keys", "LANGFUSE_PUBLIC_KEY"),
        (404, b"<html>no</html>", "text/html", "is not there (404, a web page)", "Langfuse 4 or newer"),
        (200, b"<html>log in</html>", "text/html", "answered a web page", "LANGFUSE_BASE_URL"),
        (200, b'{"data": 1}', "application/json", "answered no list", "LANGFUSE_BASE_URL"),
        (200, b'{"data": [1], "meta": {}}', "application/json", "answered no list", "LANGFUSE_BASE_URL"),
        (302, b"", "text/plain", "is not there (302)", "its address"),
    ],
)
def test_what_asking_again_cannot_help(status: int, body: bytes, type: str, said: str, hint: str) -> None:
    script = [_always(status, body, content_type=type)]
    with langfuse_server(script=script) as server, pytest.raises(LangfuseError) as raised:
        _client(server).page("/api/public/v2/observations", {})
    assert said in raised.value.message
    assert hint in str(raised.value)
    assert SECRET not in str(raised.value)


def test_who_is_busy_is_asked_again_when_it_says() -> None:
    waits: list[float] = []
    busy = [_always(429, retry_after="7"), _always(503), lambda _path, _body: None]
    with langfuse_server(script=busy) as server:
        assert _client(server, waits).page("/api/public/v2/observations", {}) == ([], None)
    assert waits[0] == 7
    assert len(waits) == 3


def test_a_date_to_wait_for_is_understood() -> None:
    waits: list[float] = []
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    with langfuse_server(script=[_always(429, retry_after=later)]) as server:
        _client(server, waits).page("/api/public/v2/observations", {})
    assert 30 < waits[0] <= 90


def test_a_short_wait_is_reported_as_what_it_is() -> None:
    shown: list[str] = []
    with langfuse_server(script=[_always(503), _always(429, retry_after="7")]) as server:
        connection = Connection.resolve(server.environ())
        LangfuseClient(connection, sleep=lambda _: None, say=shown.append).page("/api/public/v2/observations", {})
    assert [line.rpartition("asking again in ")[2] for line in shown] == ["0.5 s", "7 s"]


def test_who_never_answers_is_given_up_with_what_to_do() -> None:
    with (
        langfuse_server(script=[_always(500)] * 20) as server,
        pytest.raises(LangfuseAway, match="answered 500") as raised,
    ):
        _client(server).page("/api/public/v2/observations", {})
    assert "goes on where it stopped" in str(raised.value)


def test_nobody_there() -> None:
    connection = Connection.resolve({**LangfuseServer("http://127.0.0.1:1").environ()})
    with pytest.raises(LangfuseAway, match="does not answer"):
        LangfuseClient(connection, sleep=lambda _: None).page("/api/public/v2/observations", {})


@pytest.mark.parametrize("missing", ["LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"])
def test_a_missing_key_is_named(missing: str) -> None:
    environ = LangfuseServer("http://127.0.0.1:1").environ()
    del environ[missing]
    with pytest.raises(ArttraceError, match=missing):
        Connection.resolve(environ)


def test_the_secret_key_is_in_no_repr() -> None:
    assert SECRET not in repr(Connection.resolve(LangfuseServer("http://x").environ()))


def _stored(path: Path) -> DataDir:
    data = DataDir(path / ".arttrace")
    with Store.open(data, create=True) as store:
        store.append([*recorded_group("g", [0.0, 1.0, 0.5]), *research_run("r")])
    return data


def _run(data: DataDir, server: LangfuseServer, *args: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["langfuse", *args, "--dir", str(data.root)], env=server.environ())
    return done.exit_code, done.output + (f"\n{done.exception}" if done.exception else "")


def test_a_push_of_nothing_new_says_that_the_keys_are_wrong(tmp_path: Path) -> None:
    data = _stored(tmp_path)
    with langfuse_server() as server:
        assert _run(data, server, "push")[0] == 0
        environ = {**server.environ(), "LANGFUSE_SECRET_KEY": "another"}
        done = CliRunner().invoke(cli, ["langfuse", "push", "--dir", str(data.root)], env=environ)
    assert done.exit_code == 1
    assert "refused the keys (401: Invalid credentials" in str(done.exception)


def test_one_span_that_is_refused_costs_no_other(tmp_path: Path) -> None:
    data = _stored(tmp_path)
    bad = {(span.trace_id, span.span_id) for span in _spans(data) if span.name == "invoke_agent planner"}
    with langfuse_server(refuses=lambda span: (span.trace_id, span.span_id) in bad) as one:
        code, said = _run(data, one, "push")
        assert len(one.observations) == len(_spans(data)) - len(bad)
        assert code == 1
        assert f"Langfuse refused {len(bad)} spans" in said
        assert "400: Invalid span" in said


def _spans(data: DataDir) -> list:  # type: ignore[type-arg]
    with Store.open(data) as store:
        return [span for run in store.summaries() for span in store.spans(run.id)]


@pytest.mark.parametrize("takes_lists", [True, False])
def test_a_score_that_is_refused_costs_no_other(tmp_path: Path, takes_lists: bool) -> None:
    data = _stored(tmp_path)
    with Store.open(data) as store:
        store.append([Reward(id="x", trajectory_id="r", value=1.0, name="refused")])
    with langfuse_server(takes_lists=takes_lists) as server:
        code, said = _run(data, server, "push")
        names = [one["name"] for one in server.scores.values()]
    assert sorted(names) == sorted(["reward"] * 3 + ["advantage"] * 3 + ["refused"] * (not takes_lists))
    if takes_lists:
        assert code == 1
        assert "refused 0 spans and 1 score" in said
        assert "score refused: invalid" in said


def test_what_a_207_tells_of_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how many scores were refused and why, and not which: the API's reference asks for no second try."""
    data, sent = _stored(tmp_path), []
    with Store.open(data) as store:
        store.append([Reward(id="x", trajectory_id="r", value=1.0, name="refused")])
    with langfuse_server() as server:
        taking = server.take_scores

        def take_scores(body: bytes) -> Answer:
            sent.extend(one["id"] for one in json.loads(body))
            return taking(body)

        monkeypatch.setattr(server, "take_scores", take_scores)
        code, said = _run(data, server, "push")
        assert code == 1
        assert "6 scores sent" in said
        assert "refused 0 spans and 1 score" in said
        assert "score refused: invalid" in said
        assert len(sent) == len(set(sent)) == 7
        _run(data, server, "push")
        assert len(sent) == 7


@pytest.mark.parametrize("accepted", [2, None, "two", 9])
def test_a_score_that_a_207_does_not_acknowledge_counts_as_refused(accepted: object) -> None:
    said = json.dumps({"accepted": accepted, "rejected": 1, "errors": [{"message": "why"}]}).encode()
    scores = [{"id": str(number), "name": "reward"} for number in range(4)]
    with langfuse_server(script=[_always(207, said)]) as server:
        assert _client(server).send_scores(scores) == (2 if accepted == 2 else 4, ["why"])
        assert server.count("/api/public/scores") == 1


def test_a_list_that_is_refused_as_a_whole_costs_the_one_score_that_is_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A newer server's own check refuses the request, and takes no score that is not in a list."""
    scores = [
        {"id": str(number), "name": "bad" if number == 5 else "reward", "timestamp": "2026"} for number in range(9)
    ]
    with langfuse_server() as server:
        taking = server.take_scores

        def take_scores(body: bytes) -> Answer:
            given = json.loads(body)
            is_bad = isinstance(given, list) and any(one["name"] == "bad" for one in given)
            return (400, {"content-type": "application/json"}, b'{"message": "bad"}') if is_bad else taking(body)

        monkeypatch.setattr(server, "take_scores", take_scores)
        refused, [reason] = _client(server).send_scores(scores)
        assert refused == 1
        assert reason.startswith("bad: ")
        assert sorted(one["id"] for one in server.scores.values()) == [str(n) for n in range(9) if n != 5]


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_spans_that_are_refused_in_part_are_counted_and_not_sent_again(form: str, tmp_path: Path) -> None:
    """OTLP's partial success: the receiver has taken the others, and what it refused it would refuse again."""
    data, requests = _stored(tmp_path), []
    answer = partial_success(2, "too old")
    if form == "json":
        answer = json.dumps({"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}).encode()
    kind = "application/json" if form == "json" else "application/x-protobuf"
    with langfuse_server() as server:

        def in_part(path: str, body: bytes) -> Answer:
            requests.append(body)
            return 200, {"content-type": kind}, answer

        server.script = [in_part]
        code, said = _run(data, server, "push")
        assert code == 1
        assert f"({len(_spans(data)) - 2} spans)" in said
        assert "refused 2 spans" in said
        assert "too old" in said
        assert len(requests) == server.count("/api/public/otel/v1/traces") == 1
        assert "0 runs (0 spans)" in _run(data, server, "push")[1]


def test_a_push_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    data = _stored(tmp_path)
    with langfuse_server() as server:
        assert _run(data, server, "push", "--entry", "agent:run", "--group", "g", "--no-scores")[0] == 0
        taken = len(server.observations)
        code, said = _run(data, server, "push")
        assert code == 0
        assert f"1 run ({len(server.observations) - taken} spans) and 6 scores sent" in said
        assert len(server.scores) == 6


def test_a_push_that_no_run_matches_says_so(tmp_path: Path) -> None:
    data = _stored(tmp_path)
    with langfuse_server() as server:
        assert _run(data, server, "push", "--entry", "nobody") == (0, "nothing was sent: no run matches\n")
        assert not server.observations
        assert "nothing was sent" not in _run(data, server, "push")[1]
        assert "nothing was sent" not in _run(data, server, "push")[1], "what was sent before matches"


def test_a_pull_that_was_cut_off_goes_on_at_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.views.langfuse.pull._OBSERVATIONS_OF_PAGE", 5)
    monkeypatch.setattr("arttrace.views.langfuse.client._TRIES", 1)
    data, other = _stored(tmp_path), DataDir(tmp_path / "other")
    with langfuse_server() as server:
        _run(data, server, "push")
        total = len(server.observations)

        def through(path: str, body: bytes) -> Answer:
            query = {"fields": "core,basic,time,io,metadata,model,usage,trace_context", "limit": "5"}
            return server.list_observations({**query, "expandMetadata": "arttrace_span"})

        server.script = [through, _always(500)]
        code, said = _run(other, server, "pull")
        assert code == 1
        assert "answered 500" in said
        server.requests.clear()
        code, said = _run(other, server, "pull")
        assert code == 0, said
        assert f"{total} observations and 3 scores taken in" in said
        left, since = -(-total // 5) - 1, 1
        assert server.count("/api/public/v2/observations") == left + since
        assert sorted(map(str, _spans(other))) == sorted(map(str, _spans(data)))


def test_a_pull_by_tag_takes_whole_traces(tmp_path: Path) -> None:
    data, other = _stored(tmp_path), DataDir(tmp_path / "other")
    with langfuse_server() as server:
        _run(data, server, "push")
        traces = sorted({trace for trace, _, _ in server.observations})
        for (trace, _, _), item in server.observations.items():
            if trace == traces[0] and item["parentObservationId"] is None:
                item["tags"] = ["keep"]
        code, said = _run(other, server, "pull", "--tag", "keep", "--json")
        assert code == 0, said
        wanted = [one for trace, one, _ in server.observations if trace == traces[0]]
        assert json.loads(said)["observations"] == len(wanted)
        assert {span.trace_id for span in _spans(other)} == {traces[0]}
        assert json.loads(said)["scores"] == sum(one["traceId"] == traces[0] for one in server.scores.values()) - sum(
            one["traceId"] == traces[0] and one["name"] == "advantage" for one in server.scores.values()
        )


def test_a_page_that_leads_to_itself_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after it was left out without a word."""
    monkeypatch.setattr("arttrace.views.langfuse.pull._OBSERVATIONS_OF_PAGE", 5)
    data, other = _stored(tmp_path), DataDir(tmp_path / "other")
    with langfuse_server() as server:
        _run(data, server, "push")
        routed = server.list_observations

        def again(query: dict[str, str]) -> Answer:
            status, headers, body = routed(query)
            page = json.loads(body)
            page["meta"]["cursor"] = query.get("cursor", page["meta"].get("cursor"))
            return status, headers, json.dumps(page).encode()

        monkeypatch.setattr(server, "list_observations", again)
        code, said = _run(other, server, "pull")
    assert code == 1
    assert "as the one that comes after it" in said
    assert len(_spans(other)) == 5


def test_scores_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    data, other = _stored(tmp_path), DataDir(tmp_path / "other")
    with langfuse_server() as server:
        _run(data, server, "push", "--no-scores")
        trace = next(iter(server.observations))[0]
        for number, (value, kind) in enumerate([("good", "CATEGORICAL"), (True, "BOOLEAN"), (0.5, "NUMERIC")]):
            one = {"id": f"s{number}", "name": "q", "value": value, "dataType": kind, "traceId": trace}
            server._score({**one, "timestamp": "2026-11-20T10:00:00.000Z", "source": "ANNOTATION"})
        code, said = _run(other, server, "pull")
    assert code == 0, said
    assert "2 scores taken in" in said
    assert "1 score left out: not numbers" in said


PAGES = (("text/html", b"<html>log in</html>"), ("text/plain", b"<!doctype html><html></html>"), ("text/plain", b"ok"))
"""Of either address one function tells them apart."""


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        *(("/api/public/otel/v1/traces", *page) for page in PAGES),
        ("/api/public/scores", *PAGES[0]),
        *(pytest.param("/api/public/scores", *page, marks=pytest.mark.full) for page in PAGES[1:]),
    ],
)
def test_a_page_of_a_proxys_is_no_acknowledgement(path: str, kind: str, body: bytes, tmp_path: Path) -> None:
    """Nothing of what it stands for counts as sent: the next push sends it."""
    data = _stored(tmp_path)
    with langfuse_server() as server:
        taken = server.take_spans if path.endswith("traces") else server.take_scores
        name = taken.__name__
        setattr(server, name, lambda _: (200, {"content-type": kind}, body))
        code, said = _run(data, server, "push")
        assert code == 1
        assert f"{path} answered {'a web page' if b'<' in body else 'no JSON'}" in said
        assert "is no proxy in between?" in said
        setattr(server, name, taken)
        code, said = _run(data, server, "push")
        assert code == 0, said
        assert len(server.observations) == len(_spans(data))
        assert len(server.scores) == 6


@pytest.mark.parametrize("trouble", ["hangs", "dies", "fails"])
def test_what_was_taken_and_not_answered_is_there_once(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Langfuse has it, and the answer never comes: it is sent again, which changes nothing."""
    monkeypatch.setattr("arttrace.views.langfuse.client._TIMEOUT_S", 0.5)
    monkeypatch.setattr("arttrace.views.langfuse.client._FIRST_WAIT_S", 0.0)
    data, released = _stored(tmp_path), threading.Event()
    with langfuse_server() as server:

        def in_vain(path: str, body: bytes) -> Answer | None:
            server.take_spans(body) if path.endswith("traces") else server.take_scores(body)
            if trouble == "hangs":
                released.wait(60)
            return (500, {"content-type": "application/json"}, b"{}") if trouble == "fails" else None

        def through(path: str, body: bytes) -> Answer:
            return server.take_spans(body)

        server.script = [in_vain, through, in_vain]
        code, said = _run(data, server, "push")
        released.set()
        assert code == 0, said
        assert ("answered 500" if trouble == "fails" else "does not answer") in said
        assert len(server.observations) == len(_spans(data))
        assert sorted(one["name"] for one in server.scores.values()) == ["advantage"] * 3 + ["reward"] * 3
        assert "0 runs (0 spans) and 0 scores sent" in _run(data, server, "push")[1]

"""`arttrace import` and `export`: forms distinguished, bad items refused alone, nothing twice, beside an owner."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from simulated_agent import research_run

from arttrace.commands import cli, main
from arttrace.commands.data import import_
from arttrace.formats.imported_files import Unreadable, read_file, read_records
from arttrace.formats.otlp.decode_json import parse_json
from arttrace.formats.otlp.encode_json import encode_json
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanLink, SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir

CHAT = {
    "task_id": "t1",
    "reward": 1,
    "messages": [
        {"role": "user", "content": "add 1 and 2"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
        {"role": "assistant", "content": "3"},
    ],
}  # fmt: skip


def run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--dir", str(tmp_path / "data")])


def write(path: Path, *items: Any) -> str:
    path.write_text("\n".join(item if isinstance(item, str) else json.dumps(item) for item in items))
    return str(path)


def test_conversations_with_bad_lines_between(tmp_path: Path) -> None:
    file = write(tmp_path / "chats.jsonl", CHAT, "{broken", {"messages": []}, {**CHAT, "reward": 0}, 7)
    result = run(tmp_path, "import", file)
    assert result.exit_code == 1
    assert "2 conversations: 2 traces, 6 spans, 2 rewards" in result.output
    assert "3 refused" in result.output
    with Store.open(DataDir(tmp_path / "data")) as store:
        one, two = store.summaries()
        assert one.group == two.group == "chats/t1"
        assert {r.value for s in (one, two) for r in s.rewards} == {0.0, 1.0}
        assert (one.calls, one.tool_calls, one.incomplete) == (2, 1, "")


def test_the_same_file_twice_is_there_once(tmp_path: Path) -> None:
    file = write(tmp_path / "chats.json", json.dumps([CHAT]))
    for _ in range(2):
        assert run(tmp_path, "import", file).exit_code == 0
    with Store.open(DataDir(tmp_path / "data")) as store:
        assert store.sql("SELECT (SELECT count(*) FROM span_records), (SELECT count(*) FROM rewards)")[1] == [(3, 1)]


def test_an_import_that_is_interrupted_says_what_is_stored_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "chats.jsonl", *({**CHAT, "task_id": n} for n in range(1500)))

    def until_ctrl_c(*arguments: Any) -> Iterator[Any]:
        yield next(read_records(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(import_, "read_records", until_ctrl_c)
    ended = run(tmp_path, "import", file)
    assert isinstance(ended.exception, SystemExit)
    said = re.fullmatch(
        rf"{re.escape(file)}: (\d+) new records stored until here; import it again for the rest.\n\nAborted!\n",
        ended.output,
    )
    assert said is not None, ended.output
    stored = int(said[1])
    assert 0 < stored < 4 * 1500
    monkeypatch.undo()
    assert f"{4 * 1500 - stored} new, {stored} already stored" in run(tmp_path, "import", file).output


def test_what_was_stored_already_is_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "chats.jsonl", CHAT)
    assert run(tmp_path, "import", file).output == f"{file}: 1 conversation: 1 trace, 3 spans, 1 reward\n"
    again = run(tmp_path, "import", file).output
    assert again == f"{file}: 1 conversation: 1 trace, 3 spans, 1 reward: 0 new, 4 already stored\n"
    write(tmp_path / "chats.jsonl", CHAT, {**CHAT, "reward": 0})
    [said] = json.loads(run(tmp_path, "import", file, "--json").output)
    assert (said["spans"], said["rewards"], said["new"], said["already_stored"]) == (6, 2, 4, 4)


def test_otlp_out_is_what_came_in() -> None:
    span = SpanRow(
        "1" * 32,
        "2" * 16,
        "naïve \x00",
        1 << 60,
        (1 << 60) + 1,
        parent_span_id="3" * 16,
        kind=3,
        status_code=2,
        status_message="no",
        attributes={
            "s": "x",
            "b": True,
            "i": 1 << 60,
            "f": 0.5,
            "l": [1, "a", None, [2]],
            "d": {"k": {"n": False}},
            "n": None,
        },
        events=[SpanEvent("e", 5, {"x": 1})],
        links=[SpanLink("4" * 32, "5" * 16, {"y": [1.5]})],
        trace_state="a=b",
        resource={"service.name": "s"},
        scope_name="lib",
        scope_version="2",
    )
    spans = [span, *research_run("r")]
    assert sorted(parse_json(encode_json(spans)).spans, key=lambda s: s.span_id) == sorted(
        spans, key=lambda s: s.span_id
    )


def test_exported_spans_of_one_run_and_of_all(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(research_run("a") + research_run("b"))
    assert len(parse_json(run(tmp_path, "export", "a").stdout_bytes).spans) == 8
    whole = run(tmp_path, "export").stdout_bytes
    assert len(whole.splitlines()) == 2
    again = read_file(gzip.compress(whole), "x")
    assert (again.kinds, len(again.records)) == ({"otlp": 2}, 16)


@pytest.mark.parametrize("form", ["otlp-json", "otlp-protobuf"])
def test_exported_rewards_come_back(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those given in code, by a function or by a judge stand on no span of the run: a backup without them lost them."""
    monkeypatch.setattr("arttrace.commands.data.export._RECORDS_AT_ONCE", 1)
    given = [
        Reward("o'clock", "a", 0.25, "stars", explanation="late", time_ns=5_000),
        Reward("judged", "a", 0.75, "ruler", "judge", time_ns=7_000),
        Reward("checker", "b", 1.0, agent_id="2" * 16, time_ns=9_000),
    ]
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append([*research_run("a"), *research_run("b"), *given])
        rewards = {id: store.trajectory(id).rewards for id in ("a", "b")}
    backup = str(tmp_path / "backup")
    assert "16 spans and 3 rewards in" in run(tmp_path, "export", "--format", form, "-o", backup).output
    again = run(tmp_path / "other", "import", backup).output
    assert "2 traces, 16 spans, 3 rewards" in again
    with Store.open(DataDir(tmp_path / "other" / "data")) as store:
        assert {id: store.trajectory(id).rewards for id in ("a", "b")} == rewards
        assert [len(rewards[id]) for id in ("a", "b")] == [2, 1]
    for place in (tmp_path, tmp_path / "other"):
        assert "16 spans and 3 rewards in" in run(place, "export", "--format", form, "-o", backup).output
        assert "8 spans and 2 rewards in" in run(place, "export", "a", "a", "-o", backup).output


@pytest.mark.parametrize("ids", [[], ["a"]])
def test_of_a_reward_given_again_after_an_import_the_last_is_exported(tmp_path: Path, ids: list[str]) -> None:
    """It has the id of the one that stands on a span: a judge's next score of a run, say."""
    first = Reward("ruler:a", "a", 0.25, "ruler", "judge", time_ns=1_000)
    last = Reward("ruler:a", "a", 0.75, "ruler", "judge", explanation="better", time_ns=2_000)
    backup = str(tmp_path / "backup")
    for place, given in (("one", [*research_run("a"), first]), ("two", [last]), ("three", [])):
        with Store.open(DataDir(tmp_path / place / "data"), create=True) as store:
            store.append(given)
            assert store.trajectory("a").rewards == ((first,) if place == "one" else (last,))
        assert run(tmp_path / place, "export", *ids, "-o", backup).exit_code == 0
        assert run(tmp_path / {"one": "two", "two": "three"}.get(place, "four"), "import", backup).exit_code == 0


@pytest.mark.parametrize("ids", [[], ["a"]])
def test_a_reward_taken_back_after_an_import_is_not_exported(tmp_path: Path, ids: list[str]) -> None:
    """A span carries it where it was imported."""
    given = Reward("checked", "a", 1.0, time_ns=1_000)
    backup = str(tmp_path / "backup")
    for place, records in (
        ("one", [*research_run("a"), given]),
        ("two", [replace(given, time_ns=2_000, counts=False)]),
    ):
        with Store.open(DataDir(tmp_path / place / "data"), create=True) as store:
            store.append(records)
        said = run(tmp_path / place, "export", *ids, "-o", backup).output
        assert said.startswith(f"8 spans and 1 {'reward' if place == 'one' else 'other record'} in")
        assert run(tmp_path / "two", "import", backup).exit_code == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no spans|empty"),
        (b"\x00\xff garbage", "neither JSON nor"),
        (b'{"a": 1}', "no known form"),
        (b"[1, 2]", "no JSON object"),
        (b"\x1f\x8b\x08broken", "gzip"),
        (gzip.compress(b"{}" + b" " * (65 << 20)), "over 200 times its size"),
        (b"{", "truncated|malformed"),
    ],
    ids=["empty", "garbage", "object", "list", "broken-gzip", "gzip-bomb", "cut"],
)
def test_files_of_no_known_form(content: bytes, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        read_file(content, "x")


def test_a_protobuf_file_may_hold_more_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.formats.otlp.check_protobuf.MAX_SPANS", 2)
    spans = [SpanRow(f"{n:032x}", "1" * 16, "x", 1, 2) for n in range(1, 5)]
    assert read_file(b"".join(encode_protobuf([span]) for span in spans), "file").records == spans
    with pytest.raises(Unreadable, match="more than"):
        read_file(encode_protobuf(spans), "file")


def test_a_protobuf_file_of_any_length_is_distinguished_from_json() -> None:
    """Its first bytes are the end of a line and a length, which may be that of a bracket."""
    for length in range(120):
        span = SpanRow("a" * 32, "b" * 16, "n" * length, 1, 2)
        assert read_file(encode_protobuf([span]), "file").records == [span]
    assert len(read_file(b"\n\n" + json.dumps(CHAT).encode(), "file").records) == 4


def test_an_unknown_file_is_an_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    file = write(tmp_path / "x.json", {"a": 1})
    monkeypatch.setattr(sys, "argv", ["arttrace", "import", file, "--dir", str(tmp_path / "data")])
    with pytest.raises(SystemExit):
        main()
    assert "is in no known form" in (heard := capsys.readouterr().err)
    assert "arttrace import --help" in heard


def test_beside_a_running_collector(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = write(tmp_path / "chats.json", json.dumps(CHAT))
    command = [sys.executable, "-m", "arttrace.commands", "collect", "--port", "0", "--dir", str(data)]
    if not (Path(__file__).parents[2] / "arttrace" / "commands" / "__main__.py").exists():
        command[1:3] = ["-c", "from arttrace.commands import main; main()"]
    collector = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert collector.stdout is not None
        assert "collecting on" in collector.stdout.readline()
        assert "1 conversation: 1 trace" in run(tmp_path, "import", file).output
        assert "3 spans and 1 reward in" in run(tmp_path, "export", "--output", str(tmp_path / "out")).output
    finally:
        collector.terminate()
        collector.wait(30)
    with Store.open(DataDir(data)) as store:
        assert len(store.trajectories()) == 1


def exchange(task: str, run: int, turn: int, **beside: Any) -> dict[str, Any]:
    """A request of a run of three turns with its answer."""
    history: list[dict[str, Any]] = [{"role": "user", "content": f"task {task}"}]
    for n in range(turn):
        history += [{"role": "assistant", "content": f"{run}.{n}"}, {"role": "user", "content": f"on {run}"}]
    answer = {"message": {"role": "assistant", "content": f"{run}.{turn}"}, "finish_reason": "stop"}
    return {
        "request": {"model": "m", "messages": history},
        "response": {"created": 1_790_000_000 + run, "choices": [answer]},
        **beside,
    }


@pytest.mark.parametrize("inside", [False, True])
def test_rewards_and_task_ids_beside_exchanges_are_read(inside: bool, tmp_path: Path) -> None:
    items = []
    for run_number in range(4):
        task = "odd" if run_number % 2 else "even"
        for turn in range(2):
            beside: dict[str, Any] = {"task_id": task, "user": "u1"}
            if turn:
                beside["reward"] = run_number / 4
            items.append(exchange(task, run_number, turn, **({"metadata": beside} if inside else beside)))
    file = write(tmp_path / "log.jsonl", "\n".join(map(json.dumps, items)))
    for _ in range(2):  # a file imported twice is there once
        assert "4 rewards" in run(tmp_path, "import", file).output
    with Store.open(DataDir(tmp_path / "data")) as store:
        runs = store.trajectories()
        assert [(one.scenario, len(one.calls), one.metadata["user"]) for one in runs] == [
            ("log/even", 2, "u1"),
            ("log/odd", 2, "u1"),
            ("log/even", 2, "u1"),
            ("log/odd", 2, "u1"),
        ]
        assert [[reward.value for reward in one.rewards] for one in runs] == [[0.0], [0.25], [0.5], [0.75]]
        assert not any(one.incomplete or one.conflicts for one in runs)
        assert len(store.trajectories(group="log/odd")) == 2
        assert {summary.group for summary in store.summaries()} == {"log/even", "log/odd"}
        assert store.sql("SELECT key, trajectories FROM groups ORDER BY key")[1] == [("log/even", 2), ("log/odd", 2)]


def test_of_several_rewards_in_a_run_the_last_counts(tmp_path: Path) -> None:
    items = [exchange("t", 0, turn, reward=turn) for turn in range(3)]
    run(tmp_path, "import", write(tmp_path / "log.json", items))
    with Store.open(DataDir(tmp_path / "data")) as store:
        [only] = store.trajectories()
    assert [reward.value for reward in only.rewards] == [2.0]


def test_what_stands_in_the_metadata_of_a_conversation_is_the_runs(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    inside = {"task_id": "t1", "ticket": "A7", "reward": 0.5}
    items = [
        {"messages": said, "metadata": inside, "tags": ["x", "y"], "user": "ada"},
        {"messages": said, "metadata": "words", "tags": "word"},
    ]
    run(tmp_path, "import", write(tmp_path / "log.json", items))
    with Store.open(DataDir(tmp_path / "data")) as store:
        runs = store.trajectories()
    full = [one for one in runs if one.tags]
    assert [one.tags for one in full] == [("x", "y")]
    assert [one.metadata for one in full] == [{"task_id": "t1", "ticket": "A7", "user": "ada"}]
    assert [(one.scenario, [reward.value for reward in one.rewards]) for one in full] == [("log/t1", [0.5])]
    assert [one.metadata for one in runs if not one.tags] == [{"metadata": "words", "tags": "word"}], "as it was said"
    listed = run(tmp_path, "ls", "--group", "t1").output
    assert listed.count(" t1 ") == 1, "the task is shown as it stands in the file, and found by that"
    assert " - " in listed.splitlines()[2], "no age where there is no date"


def test_what_came_without_times_has_no_seconds(tmp_path: Path) -> None:
    """The second in which an undated call stands is made up: no figure may come of it."""
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    file = write(tmp_path / "log.json", [{"messages": said}])
    run(tmp_path, "import", file)
    counted = json.loads(run(tmp_path, "stats", "--json").output)
    for by in ("entry", "agent", "model"):
        [one] = counted[by]
        assert (one["count"], one["p50_s"], one["p90_s"], one["p99_s"]) == (1, None, None, None), by
    with Store.open(DataDir(tmp_path / "data")) as store:
        for view in ("trajectories", "calls", "agents", "spans"):
            assert set(store.sql(f"SELECT seconds, started FROM {view}")[1]) == {(None, None)}, view
        assert store.sql("SELECT started FROM groups")[1] == [(None,)]
        [only] = store.trajectories()
    assert "not known (imported without times)" in run(tmp_path, "show", only.id).output


@pytest.mark.parametrize("named", ["created", "created_at", "timestamp"])
@pytest.mark.parametrize("at", [1_790_000_000, "2026-09-21T14:13:20Z", "2026-09-21T16:13:20+02:00"])
def test_a_conversation_and_a_pair_are_dated_by_what_stands_beside_them(tmp_path: Path, named: str, at: Any) -> None:
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    pair = {"request": {"messages": said[:1]}, "response": {"choices": [{"message": said[1]}], named: at}}
    run(tmp_path, "import", write(tmp_path / "log.jsonl", {"messages": said, named: at}, pair))
    with Store.open(DataDir(tmp_path / "data")) as store:
        days = store.sql("SELECT started::DATE::VARCHAR FROM trajectories")[1]
    assert days == [("2026-09-21",), ("2026-09-21",)]


def test_a_pair_has_the_entry_in_sql_that_ls_shows(tmp_path: Path) -> None:
    pair = {"request": {"messages": [{"role": "user", "content": "?"}]}, "response": {"choices": [
        {"message": {"role": "assistant", "content": "!"}}
    ]}}  # fmt: skip
    run(tmp_path, "import", write(tmp_path / "log.jsonl", pair))
    [listed] = json.loads(run(tmp_path, "ls", "--json").output)
    with Store.open(DataDir(tmp_path / "data")) as store:
        assert store.sql("SELECT entry FROM trajectories")[1] == [(listed["entry"],)]
    [counted] = json.loads(run(tmp_path, "stats", "--json").output)["entry"]
    assert (listed["entry"], counted["name"]) == ("agent", "agent")


def test_a_file_that_is_refused_in_part_is_reported_by_the_exit_code(tmp_path: Path) -> None:
    """A script that takes in files learns that something is missing; the rest is there, of the later files too."""
    said = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    part = write(tmp_path / "part.jsonl", said, {"messages": [{"role": "user"}, 5]})
    whole = write(tmp_path / "whole.jsonl", {**said, "task_id": "t"})
    done = run(tmp_path, "import", part, whole)
    assert done.exit_code == 1
    assert "1 refused" in done.output
    assert run(tmp_path, "import", "--json", part).exit_code == 1
    assert run(tmp_path, "import", whole).exit_code == 0
    with Store.open(DataDir(tmp_path / "data")) as store:
        assert len(store.trajectories()) == 2


def test_nothing_of_a_conversations_metadata_is_lost_to_what_stands_beside_it(tmp_path: Path) -> None:
    """A row of a table has empty cells; a word that is no number is no reward; two things of one name are both kept."""
    said = CHAT["messages"]
    file = write(
        tmp_path / "chats.jsonl",
        {"messages": said, "reward": None, "task_id": None, "metadata": {"reward": 1.0, "task_id": "t1"}},
        {"messages": said, "metadata": {"score": "good"}},
        {"messages": said, "user": "ada", "metadata": {"user": "bob"}},
    )
    result = run(tmp_path, "import", file)
    assert result.exit_code == 0, result.output
    with Store.open(DataDir(tmp_path / "data")) as store:
        runs = store.trajectories()
        rewards = [(one.name, one.value) for run in runs for one in run.rewards]
    kept = [one.metadata for one in runs]
    assert rewards == [("reward", 1.0)]
    assert {"task_id": "t1"} in kept
    assert {"score": "good"} in kept
    assert {"user": "ada", "metadata": {"user": "bob"}} in kept

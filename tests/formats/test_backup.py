"""A backup by `arttrace export` and `import` loses nothing: what a store holds besides its spans comes back whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.commands.data import export
from arttrace.formats.evaluations import record_span
from arttrace.formats.otlp.encode_json import encode_json
from arttrace.records.group import Grouping
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.store import Store
from arttrace.store.rows.views import DESCRIBED
from arttrace.system.paths import DataDir

NOW = 1_700_000_000_123_456_789
_OF_THE_STORE = {"arrived", "prompt"}  # when it came in, and numbers of its own


def evaluated_by_others() -> SpanRow:
    """A span of another SDK, on which two rewards stand."""
    events = [
        SpanEvent("gen_ai.evaluation.result", NOW, {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": 1})
        for name in ("polite", "correct")
    ]
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "other"}
    return SpanRow("e" * 32, "e" * 16, "other", NOW, NOW + 9, attributes=attributes, events=events)


def everything() -> list[Record]:
    judged = Judgement("j1", "key", "g", "judge/1", "r", {"a": 0.5, "b": 1.0}, {"a": "it's fair"}, 10, 2, 0.01, NOW)
    return [
        *research_run("a"),
        *research_run("b"),
        evaluated_by_others(),
        Reward("code", "a", 1.0, explanation="line\nline", time_ns=NOW + 1, version="v3", given_to="f" * 32 + "/1"),
        Reward("code", "a", 0.5, explanation="again", time_ns=NOW + 2, version="v4"),
        Reward("old judge", "a", 0.25, "ruler", "judge", judgement_id="j0", time_ns=NOW + 3),
        Reward("judge", "a", 0.5, "ruler", "judge", explanation="fair", judgement_id="j1", time_ns=NOW + 4),
        Reward("of an agent", "b", 1.0, agent_id="2" * 16, time_ns=NOW + 5),
        Reward("without a time", "b", 0.125),
        Reward("note", "a", 0.0, "note", "person", explanation="look at this", time_ns=NOW + 6, counts=False),
        Reward("o'clock", "b", 1.0, "person", "person", time_ns=NOW + 7),
        Reward("o'clock", "b", 1.0, "person", "person", time_ns=NOW + 8, counts=False),
        judged,
        Grouping("one", "metadata.ticket", {"a": "T", "b": None}, NOW),
        PolicyStep(
            "p", 1, "policies/p/1", (Consumed("a", "r1"), Consumed("b", "r2", "sft")), {"loss": 0.5}, time_ns=NOW
        ),
    ]


def taken_back(data: DataDir) -> None:
    """Takes back a reward that stands on a span."""
    with Store.open(data) as store:
        [given] = [one for one in store.trajectory("e" * 32).rewards if one.name == "polite"]
        store.append([Reward(given.id, given.trajectory_id, 1.0, "polite", time_ns=NOW + 9, counts=False)])


def contents(data: DataDir) -> dict[str, Any]:
    """All views and all records that are no spans; of the rewards with one id the last."""
    with Store.open(data) as store:
        views = {}
        for view in DESCRIBED:
            columns, rows = store.sql(f'SELECT * FROM "{view.name}"')
            of_run = [place for place, name in enumerate(columns) if (view.name, name) != ("messages", "id")]
            kept = [place for place in of_run if columns[place] not in _OF_THE_STORE]
            views[view.name] = sorted(repr([row[place] for place in kept]) for row in rows)
        for table in ("judgement_records", "grouping_records", "policy_step_records", "regrouped", "consumption"):
            views[table] = sorted(map(repr, store.sql(f"SELECT * FROM {table}")[1]))
        last = "QUALIFY 1 = row_number() OVER (PARTITION BY id ORDER BY time_ns DESC)"
        views["reward_records"] = sorted(store.sql(f"SELECT document, content_hash FROM reward_records {last}")[1])
        views["trajectories as built"] = sorted(
            repr((one.id, one.rewards, one.notes, one.regrouped)) for one in store.trajectories()
        )
        return views


def arttrace(data: DataDir, *arguments: str) -> str:
    done = CliRunner().invoke(cli, [*arguments, "--dir", str(data.root)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("form", ["otlp-json", "otlp-protobuf"])
def test_a_new_store_holds_what_the_backup_of_the_old_one_says(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.commands.data.export._RECORDS_AT_ONCE", 2)
    old, new = DataDir(tmp_path / "old"), DataDir(tmp_path / "new")
    with Store.open(old, create=True) as store:
        store.append(everything())
    taken_back(old)
    backup = str(tmp_path / "backup")
    assert arttrace(old, "export", "--format", form, "-o", backup).startswith(
        "17 spans and 5 rewards and 6 other records in"
    )
    assert ": 3 traces, 17 spans, 7 rewards, 6 other records" in arttrace(new, "import", backup)
    assert contents(new) == contents(old)
    arttrace(new, "import", backup)
    assert contents(new) == contents(old), "a second time changes nothing"


def test_a_backup_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, backup = DataDir(tmp_path / "old"), tmp_path / "backup"
    with Store.open(data, create=True) as store:
        store.append(everything())
    arttrace(data, "export", "-o", str(backup))
    before = backup.read_bytes()

    def full(spans: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(export._FORMS, "otlp-protobuf", full)
    asked = ["export", "-o", str(backup), "--format", "otlp-protobuf", "--dir", str(data.root)]
    failed = CliRunner().invoke(cli, asked)
    assert f"{backup} cannot be written: No space left on device\nFree disk space" in str(failed.exception)
    assert backup.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["backup", "old"]


def test_a_run_that_is_exported_alone_has_its_rewards_and_notes_and_no_others(tmp_path: Path) -> None:
    old, new = DataDir(tmp_path / "old"), DataDir(tmp_path / "new")
    with Store.open(old, create=True) as store:
        store.append(everything())
    taken_back(old)
    backup = str(tmp_path / "backup")
    arttrace(old, "export", "a", "e" * 32, "-o", backup)
    arttrace(new, "import", backup)
    with Store.open(old) as before, Store.open(new) as after:
        for id in ("a", "e" * 32):
            run, again = before.trajectory(id), after.trajectory(id)
            assert (again.rewards, again.notes) == (run.rewards, run.notes)
        assert {one.trajectory_id for one in _rewards(after)} == {"a", "e" * 32}


def test_a_span_that_was_stored_before_its_end_is_exported_once(tmp_path: Path) -> None:
    """As any is that lasts; one whose end has not come is exported as it is."""
    data = DataDir(tmp_path / "store")
    spans = research_run("a")
    root, *_ = [span for span in spans if span.parent_span_id is None]
    with Store.open(data, create=True) as store:
        store.append([replace(root, end_ns=0)])
        store.append(spans)
        store.append([replace(span, trace_id="d" * 32, end_ns=0) for span in research_run("d")[:1]])
    assert arttrace(data, "export", "-o", str(tmp_path / "x.jsonl")).startswith(f"{len(spans) + 1} spans in ")


@pytest.mark.parametrize("form", ["otlp-json", "otlp-protobuf"])
def test_a_run_longer_than_what_import_takes_as_one_request_comes_back_whole(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.commands.data.export._SPANS_AT_ONCE", 10)
    monkeypatch.setattr("arttrace.commands.data.export._CHARACTERS_AT_ONCE", 10_000)
    monkeypatch.setattr("arttrace.formats.otlp.check_protobuf.MAX_SPANS", 20)
    monkeypatch.setattr("arttrace.formats.files.items.MAX_ITEM_BYTES", 20_000)
    monkeypatch.setattr("arttrace.formats.files.items._AT_ONCE", 20_000)
    old, new, backup = DataDir(tmp_path / "old"), DataDir(tmp_path / "new"), str(tmp_path / "backup")
    text = {"gen_ai.operation.name": "invoke_agent", "text": "x" * 3_000}
    with Store.open(old, create=True) as store:
        store.append([SpanRow("c" * 32, f"{n:016x}", "agent", NOW, NOW, attributes=text) for n in range(1, 31)])
        store.append([Grouping(f"g{n}", "by" * 1_000, {"a": "T"}, NOW) for n in range(10)])
    arttrace(old, "export", "--format", form, "-o", backup)
    assert arttrace(new, "import", backup).endswith(": 1 trace, 30 spans, 0 rewards, 10 other records\n")
    assert contents(new) == contents(old)


@pytest.mark.parametrize("chosen", ["by name", "by a condition", "everything"])
def test_a_store_is_asked_as_often_for_few_runs_as_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    """The spans of a trace lie anywhere in the store: one question for each is a scan of all for each."""
    asked: list[str] = []
    for name in ("sql", "spans_of_traces"):
        real = getattr(Store, name)
        monkeypatch.setattr(Store, name, lambda self, given, real=real: asked.append(str(given)) or real(self, given))
    counts = []
    for number in (3, 30):
        data, ids = DataDir(tmp_path / str(number)), [f"run-{one}" for one in range(number)]
        with Store.open(data, create=True) as store:
            store.append([record for id in ids for record in research_run(id)])
            store.summaries()
        asked.clear()
        options = {"by name": ids, "by a condition": ["--since", "1970-01-01"]}.get(chosen, [])
        arttrace(data, "export", *options, "-o", str(tmp_path / "out"))
        counts.append(len(asked))
    assert counts[1] == counts[0] < 20


def _rewards(store: Store) -> list[Reward]:
    return [one for run in store.trajectories() for one in (*run.rewards, *run.notes)]


@pytest.mark.parametrize("form", ["otlp-json", "otlp-protobuf"])
def test_a_reward_that_no_evaluation_result_can_say_comes_back_as_it_was(tmp_path: Path, form: str) -> None:
    odd = [
        Reward("without a name", "a", 1.0, ""),
        Reward("without a source", "a", 1.0, source=""),
        Reward("before 1970", "a", 1.0, time_ns=-5),
        Reward("of the agent without an id", "a", 1.0, agent_id=""),
        Reward("", "a", 1.0, "without an id", time_ns=NOW),
        Reward("of no run", "", 1.0, time_ns=NOW),
    ]
    old, new = DataDir(tmp_path / "old"), DataDir(tmp_path / "new")
    with Store.open(old, create=True) as store:
        store.append([*research_run("a"), *odd])
    backup = str(tmp_path / "backup")
    arttrace(old, "export", "--format", form, "-o", backup)
    arttrace(new, "import", backup)
    assert contents(new) == contents(old)


@pytest.mark.parametrize("text", ["{", '{"type":"span"}', '{"type":"reward"}', "[]", ""])
def test_a_span_whose_record_cannot_be_read_stays_a_span(tmp_path: Path, text: str) -> None:
    data, file = DataDir(tmp_path / "data"), tmp_path / "file"
    span = record_span(Grouping("one", "by", {"a": "T"}, NOW))
    span.attributes["arttrace.record"] = text
    file.write_bytes(encode_json([span]))
    assert ": 1 trace, 1 span, 0 rewards\n" in arttrace(data, "import", str(file))

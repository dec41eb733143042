"""An agent in a trace of its own is tied to its run by a link, or by the run's id. Where the collector refused it, the
run that it was a part of is not complete, though all else of that run's trace came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from refusing_site import LEAF, ROOT, TRACE, Site, run, span

from arttrace.commands import cli
from arttrace.formats.otlp import check_protobuf, decode_json
from arttrace.store import Store
from arttrace.store.file import kept_copy
from arttrace.system.paths import DataDir

OTHER = b"\x02" * 16
BEGAN = 1_700_000_000_000_000_012


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_protobuf, "MAX_ATTRIBUTES", 8)
    monkeypatch.setattr(check_protobuf, "MAX_SPAN_BYTES", 4000)
    monkeypatch.setattr(decode_json, "MAX_ATTRIBUTES", 8)


def agent(operation: str = "invoke_agent", **more: Any) -> Span:
    made = span(LEAF, operation, b"", trace_id=OTHER, **more)
    made.links.add(trace_id=TRACE, span_id=ROOT, trace_state="state")
    return made


def good() -> bytes:
    return agent().SerializeToString()


def with_attributes() -> bytes:
    made = agent()
    for number in range(9):
        made.attributes.add(key=f"a{number}").value.int_value = 1
    return made.SerializeToString()


REFUSED: dict[str, Callable[[], bytes]] = {
    "too many attributes": with_attributes,
    "times": lambda: agent(start_time_unix_nano=0).SerializeToString(),
    "too large": lambda: agent(trace_state="x" * 5000).SerializeToString(),
    "parent": lambda: agent(parent_span_id=b"short").SerializeToString(),
    "text": lambda: good().replace(b"agent it", b"ag\xffnt it"),
    "operation": lambda: good().replace(b"invoke_agent", b"invoke\xffagent"),
    "link": lambda: good().replace(b"state", b"st\xffte"),
    "damaged behind it": lambda: good() + b"\x7a\x7f",
}


@pytest.mark.parametrize(("kind", "first"), [("times", True), *((kind, False) for kind in REFUSED)])
def test_the_run_that_a_refused_agent_linked_to_is_not_complete(site: Site, kind: str, first: bool) -> None:
    bad = REFUSED[kind]()
    if first:
        assert site.send(bad) == 1
        assert site.incomplete() == []
    assert site.send(*run()) == 0
    if not first:
        assert site.incomplete() == [""]
        assert site.send(bad) == 1
    [said] = site.incomplete()
    assert said.startswith("a span was refused: ")
    assert site.send(bad) == 1  # again: it is the same one
    assert site.incomplete() == [said]
    assert site.send(good()) == 0
    assert site.incomplete() == [""]


JSON_AGENT = {
    "traceId": OTHER.hex(),
    "spanId": LEAF.hex(),
    "name": "invoke_agent it",
    "startTimeUnixNano": str(BEGAN),
    "endTimeUnixNano": str(BEGAN + 1000),
    "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "invoke_agent"}}],
    "links": [7, {"traceId": TRACE.hex().upper(), "spanId": ROOT.hex()}],
}


@pytest.mark.parametrize("change", [{}, {"name": 5}, {"startTimeUnixNano": None}, {"attributes": 7}, {"spanId": "zz"}])
def test_the_same_holds_for_json(site: Site, change: dict[str, Any]) -> None:
    site.send(*run())
    assert site.incomplete() == [""]
    assert site.send_json({**JSON_AGENT, **change}) == 1
    [said] = site.incomplete()
    assert said.startswith("a span was refused: ")


def test_the_run_that_a_refused_agent_named_is_not_complete(site: Site) -> None:
    rows = [Span.FromString(one) for one in run()]
    for row in (*rows, other := span(LEAF, "invoke_agent", b"", trace_id=OTHER, start_time_unix_nano=0)):
        row.attributes.add(key="arttrace.trajectory.id").value.string_value = "the run"
    site.send(*(row.SerializeToString() for row in rows))
    assert site.incomplete() == [""]
    assert site.send(other.SerializeToString()) == 1
    [said] = site.incomplete()
    assert said.startswith("a span was refused: ")
    assert exported_and_imported(site) == [said]
    assert pruned(site) == [said]


def test_what_is_no_agent_is_missed_by_no_run_that_it_links_to(site: Site) -> None:
    """A message that was received links to the one that sent it, and is no part of its run."""
    site.send(*run())
    assert site.send(agent("chat", start_time_unix_nano=0).SerializeToString()) == 1
    chat = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    assert site.send_json({**JSON_AGENT, "attributes": chat}) == 1
    assert site.incomplete() == [""]


def test_it_stays_so_when_the_run_is_exported_and_imported_and_when_the_store_is_written_anew(site: Site) -> None:
    site.send(*run())
    site.send(agent(start_time_unix_nano=0).SerializeToString())
    [said] = site.incomplete()
    assert said.startswith("a span was refused: ")
    assert exported_and_imported(site) == [said]
    assert pruned(site) == [said]


def exported_and_imported(site: Site) -> list[str]:
    """Why the runs of another store are not complete that these were imported into, each way."""
    with Store.open(site.data) as store:
        [one] = [one.id for one in store.summaries()]
    found = []
    for number, ids in enumerate(([], [one])):
        for form in ("otlp-json", "otlp-protobuf"):
            again = site.data.root / f"again-{number}-{form}"
            again.mkdir()
            arguments = ["export", *ids, "--format", form, "--dir", str(site.data.root)]
            done = CliRunner().invoke(cli, arguments)
            assert done.exit_code == 0, done.output
            (again / "file").write_bytes(done.stdout_bytes)
            CliRunner().invoke(cli, ["import", str(again / "file"), "--dir", str(again)])
            with Store.open(DataDir(again)) as store:
                found += [one.incomplete for one in store.summaries()]
    assert len(found) == 4
    return list(dict.fromkeys(found))


def pruned(site: Site) -> list[str]:
    """The same of the store itself, when an old run went, and all that is kept for its age alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arttrace.store.ingest.writer._now_ns", lambda: BEGAN // 2)
        old = span(b"\x0e" * 8, "invoke_agent", b"", trace_id=b"\x03" * 16, start_time_unix_nano=7)
        old.end_time_unix_nano = 8
        site.send(old.SerializeToString())
        assert len(site.incomplete()) == 2
        patch.setattr(kept_copy, "_MARKS_KEPT_NS", -BEGAN)
        with Store.open(site.data) as store:
            assert store.prune(before_ns=BEGAN // 2 + 1).trajectories == 1
    with Store.open(site.data) as store:
        return [one.incomplete for one in store.trajectories()]

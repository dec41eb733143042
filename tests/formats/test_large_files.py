"""Files that are read piece by piece, and those that end too soon."""

from __future__ import annotations

import gzip
import io
import json
import random
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from system_files import (
    read,
)

from arttrace.commands import cli
from arttrace.formats import imported_files
from arttrace.formats.content_ids import ContentIds
from arttrace.formats.files import item_records, items
from arttrace.formats.imported_files import Imported, read_file, read_records
from arttrace.formats.sdks import openai_messages
from arttrace.records import semconv
from arttrace.records.message import Message
from arttrace.records.span import SpanRow
from arttrace.wire.messages import parse_message


@pytest.mark.parametrize("form", ["lines", "array"])
def test_a_large_file_is_read_item_by_item(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_AT_ONCE", 200)
    monkeypatch.setattr(items, "_PIECE", 64)
    asked = {"role": "user", "content": "ä\ud800 ]},{"}
    made = [{"task_id": f"t{at}", "messages": [asked, {"role": "assistant", "content": str(at)}]} for at in range(40)]
    text = json.dumps(made, indent=1) if form == "array" else "\n\n".join(map(json.dumps, made))
    found, runs = read(text.encode())
    assert found.kinds == {"conversations": 40}
    assert {run.scenario for run in runs} == {f"file/t{at}" for at in range(40)}
    cut = read_file(text.encode()[:-90], "file")
    assert (cut.kinds, cut.refused) == ({"conversations": 39}, 1)
    assert cut.reasons[0].startswith("item 40: " if form == "array" else "line 79: ")


def test_a_large_document_in_one_line_is_read_as_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [{"task_id": f"t{at}", "messages": [{"role": "user", "content": "a"}, SAID]} for at in range(20)]
    monkeypatch.setattr(items, "_AT_ONCE", 200)
    found = read_file(json.dumps({"data": made, "meta": {}}).encode() + b"\n\n", "file")
    assert (found.kinds, found.refused) == ({"conversations": 20}, 0)


def test_a_long_file_whose_first_line_is_damaged_is_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken for a document is no longer than an item may be: memory does not grow with the file."""
    made = [json.dumps({"task_id": f"t{at}", "messages": [{"role": "user", "content": "a"}, SAID]}) for at in range(40)]
    text = "\n".join(['{"damaged', *made]).encode()
    monkeypatch.setattr(items, "_AT_ONCE", 200)
    monkeypatch.setattr(items, "_PIECE", 64)
    monkeypatch.setattr(items, "MAX_ITEM_BYTES", 1000)
    monkeypatch.setattr(items, "_document", None)
    found = read_file(text, "file")
    assert (found.kinds, found.refused) == ({"conversations": 40}, 1)
    assert found.reasons[0].startswith("line 1: ")


def test_space_without_end_in_an_array_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_PIECE", 64)
    text = items._FileText(b"[", io.BytesIO(b" " * 10_000 + b"]"), items._Behind())
    text.at = 1
    held = []
    more = text.more

    def noted(size: int) -> bool:
        found = more(size)
        held.append(len(text.unread))
        return found

    monkeypatch.setattr(text, "more", noted)
    assert text.skip() == "]"
    assert max(held) <= 64


def test_a_large_array_that_ends_too_soon_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [{"task_id": f"t{at}", "messages": [{"role": "user", "content": "a"}, SAID]} for at in range(20)]
    monkeypatch.setattr(items, "_AT_ONCE", 200)
    text = json.dumps(made)
    cut = read_file(text[: text.rindex(', {"task_id')].encode() + b"\n", "file")
    assert (cut.kinds, cut.refused) == ({"conversations": 19}, 1)
    assert cut.reasons == ["item 20: the file ends within its array"]
    two = read_file(f"{text}\n{text[:-1]}\n".encode(), "file")
    assert (two.kinds, two.refused) == ({"conversations": 40}, 1)
    assert two.reasons == ["item 41: the file ends within its array"]


def pretty_documents(count: int) -> list[str]:
    asked = {"role": "user", "content": "ä\ud800 ]},{"}
    made = [
        {"task_id": f"t{at}", "messages": [asked, {"role": "assistant", "content": str(at)}]} for at in range(count)
    ]
    return [json.dumps(one, indent=2) for one in made]


def test_documents_one_after_another_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_AT_ONCE", 200)
    monkeypatch.setattr(items, "_PIECE", 64)
    held = []
    more = items._FileText.more

    def noted(text: items._FileText, size: int) -> bool:
        found = more(text, size)
        held.append(len(text.unread))
        return found

    monkeypatch.setattr(items._FileText, "more", noted)
    documents = pretty_documents(40)
    found, runs = read("\n".join(documents).encode())
    assert (found.kinds, found.refused) == ({"conversations": 40}, 0)
    assert {run.scenario for run in runs} == {f"file/t{at}" for at in range(40)}
    assert max(held) < 5 * len(documents[0]), "what is held is a document and what was read with it"


def test_a_damaged_document_among_others_is_refused_alone_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_AT_ONCE", 200)
    monkeypatch.setattr(items, "_PIECE", 64)
    documents = pretty_documents(40)
    lines = documents[0].count("\n") + 1
    documents[20] = documents[20].replace('"user",', '"user"')
    documents[30] = documents[30][: documents[30].index("assistant")]
    text = "\n".join(documents)
    found = read_file(text.encode(), "file")
    assert (found.kinds, found.refused) == ({"conversations": 38}, 2)
    first, second = found.reasons
    assert first == (
        f"line {20 * lines + 1}: the document that begins here cannot be read: Expecting ',' delimiter in line "
        f"{20 * lines + 6}; fix it or take it out, and import the file again"
    )
    assert second.startswith(f"line {30 * lines + 1}: ")


def test_a_document_over_the_bound_is_refused_and_the_next_ones_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_AT_ONCE", 200)
    monkeypatch.setattr(items, "_PIECE", 64)
    monkeypatch.setattr(items, "MAX_ITEM_BYTES", 1000)
    documents = pretty_documents(3)
    documents[1] = json.dumps({"task_id": "long", "messages": [{"role": "user", "content": "a"}] * 100}, indent=2)
    found = read_file("\n".join(documents).encode(), "file")
    assert (found.kinds, found.refused) == ({"conversations": 2}, 1)
    assert "it has over" in found.reasons[0]


SAID = {"role": "assistant", "content": "b"}


@pytest.mark.parametrize("form", ["lines", "array"])
def test_a_mark_of_utf8_before_a_long_file_hides_nothing_of_it(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_AT_ONCE", 200)
    made = [{"task_id": f"t{at}", "messages": [{"role": "user", "content": "a"}, SAID]} for at in range(40)]
    text = json.dumps(made) if form == "array" else "\n".join(map(json.dumps, made))
    found = read_file(b"\xef\xbb\xbf" + text.encode(), "file")
    assert (found.kinds, found.refused) == ({"conversations": 40}, 0)


def test_a_parquet_file_that_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([{"a": 1}]), file)
    file.write_bytes(file.read_bytes()[:-20])
    done = CliRunner().invoke(cli, ["import", str(file), "--dir", str(tmp_path / "d")])
    assert "not a complete Parquet file" in str(done.exception)


@pytest.mark.parametrize("form", ["lines", "lines.gz", "array", "documents", "page", "parquet"])
@pytest.mark.parametrize("at_once", [1 << 10, 16 << 20])
def test_it_is_known_how_far_in_a_file_a_batch_reaches(
    form: str, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are read at once are not done when they are read: what takes time is what is made of them."""
    noise = random.Random(1)
    rows = [
        {"messages": [{"role": "user", "content": noise.randbytes(1000).hex()}, {"role": "assistant", "content": "y"}]}
        for _ in range(200)
    ]
    written = {
        "lines": lambda: "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "lines.gz": lambda: gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()),
        "array": lambda: json.dumps(rows).encode(),
        "documents": lambda: "\n".join(json.dumps(row, indent=1) for row in rows).encode(),
        "page": lambda: json.dumps({"data": rows}).encode(),
        "parquet": lambda: parquet(rows),
    }[form]()
    monkeypatch.setattr(imported_files, "_RECORDS_AT_ONCE", 20)
    monkeypatch.setattr(items, "_AT_ONCE", at_once)
    monkeypatch.setattr(items, "_PIECE", 1 << 10)
    size = len(written)
    found = [batch.position / size for batch in read_records(io.BytesIO(written), size, "x", Imported(), ContentIds())]
    assert len(found) == 20
    assert found == sorted(found)
    assert found[0] <= 0.3, "and not the whole at once"
    assert found[9] == pytest.approx(0.5, abs=0.3)
    assert 0.7 <= found[-1] <= 1


def parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def test_a_message_of_a_long_conversation_is_read_once_for_all_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, times = 50, Counter[str]()
    said = [{"role": role, "content": f"{role} {turn}"} for turn in range(turns) for role in ("user", "assistant")]

    def counted(message: dict[str, Any]) -> Message:
        times[message["content"]] += 1
        return parse_message(message)

    monkeypatch.setattr(openai_messages, "parse_message", counted)
    found = read_file(json.dumps({"messages": said}).encode(), "long")
    spans = [one for one in found.records if isinstance(one, SpanRow)]
    prompts = [span.attributes[semconv.INPUT_MESSAGES] for span in spans if semconv.INPUT_MESSAGES in span.attributes]
    assert [len(json.loads(prompt)) for prompt in prompts] == [2 * turn + 1 for turn in range(turns)]
    assert max(times.values()) == 2, "in prompts, and as an answer"


def test_the_prompts_of_a_history_that_grows_are_those_of_each_alone() -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    block = {"type": "tool_result", "tool_use_id": "c", "content": "4"}
    messages: list[Any] = [{"role": "user", "content": [block, {"type": "text", "text": "so?"}]}, "none", {}]
    messages += [{"role": "user", "content": deep}, {"role": "assistant", "content": None}, {"role": "user"}]
    history = openai_messages.GrowingInputs()
    others = [{"role": "user", "content": "another"}]
    for given in (*(messages[:at] for at in range(7)), messages[:3], others, [*others, *messages]):
        assert history.text(given) == openai_messages.inputs(given)


def test_the_prompts_of_a_long_conversation_are_not_all_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds all that was said before it: a file of a megabyte needed three gigabytes."""
    monkeypatch.setattr(item_records, "_IN_MEMORY", 1 << 20)
    said = [{"role": role, "content": f"{turn}" * 400} for turn in range(300) for role in ("user", "assistant")]
    data = json.dumps({"messages": said, "reward": 1.0}).encode()
    found, characters, calls = Imported(), 0, []
    tracemalloc.start()
    try:
        for batch in read_records(io.BytesIO(data), len(data), "long", found, ContentIds()):
            characters += sum(map(item_records.characters_of, batch.records))
            calls += [one.start_ns for one in batch.records if isinstance(one, SpanRow) and one.name == "chat"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.spans, found.rewards, len(calls), calls) == (301, 1, 300, sorted(calls))
    assert characters > 80 << 20
    assert peak < 60 << 20


@pytest.mark.parametrize("of", ["conversation", "session"])
def test_what_lay_in_a_temporary_file_is_what_it_was(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1.5}'}}
    said: list[dict[str, Any]] = [{"role": "user", "content": "é \ud83d\ude00"}]
    said += [{"role": "assistant", "content": None, "tool_calls": [tool]}]
    said += [{"role": "tool", "tool_call_id": "c", "content": "4"}, {"role": "assistant", "content": "so"}]
    item: dict[str, Any] = {"messages": said, "reward": 0.5, "tags": ["a"], "created": 1_740_830_400}
    if of == "session":
        item = {"messages_and_choices": said, "reward": 0.5, "metrics": {"m": 1}, "metadata": {"k": [1, None]}}
    data = json.dumps({"trajectories": [item]} if of == "session" else item).encode()
    before = read_file(data, "file")
    monkeypatch.setattr(item_records, "_IN_MEMORY", 0)
    assert read_file(data, "file") == before
    assert before.spans

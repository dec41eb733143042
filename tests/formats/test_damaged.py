"""Files that are damaged, packed, cut off or not what they are named: what can be read is, what cannot is counted and
named, and nothing goes in silence."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
import zstandard

from arttrace.formats.files.items import ItemFile
from arttrace.formats.files.unpacked import Unreadable, without_ending
from arttrace.formats.imported_files import read_file

BOM = b"\xef\xbb\xbf"


def row(number: int) -> bytes:
    messages = [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": "a"}]
    return json.dumps({"task_id": number, "messages": messages}).encode()


def pretty(number: int) -> bytes:
    return json.dumps(json.loads(row(number)), indent=2).encode()


ONE, TWO = row(1), row(2)
PACKED = gzip.compress(ONE + b"\n" + TWO)
COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_763_000_000,
    "model": "gpt-4o",
    "metadata": {},
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
}


@pytest.mark.parametrize(
    "data",
    [
        BOM + ONE + b"\n" + TWO,
        BOM + b"[" + ONE + b"," + TWO + b"]",
        ONE + b"\r\n" + TWO + b"\r\n",
        ONE + b"\r" + TWO + b"\n\r\n",
        b"[" + ONE + b"]\n" + TWO,
        b"[" + ONE + b"]\n[" + TWO + b"]\n",
        pretty(1) + b"\n" + pretty(2),
        BOM + pretty(1) + b"\r\n\r\n" + BOM + pretty(2).replace(b"\n", b"\r\n"),
        pretty(1) + pretty(2),
        b"\n\n" + pretty(1)[:2] + pretty(1)[4:] + b"\n" + TWO,
        ONE + b"\n" + pretty(2),
        pretty(1) + b"\n" + TWO,
        gzip.compress(pretty(1) + b"\n") + gzip.compress(pretty(2)),
        json.dumps(json.loads(ONE), indent=0).encode() + b"\n" + json.dumps(json.loads(TWO), indent=0).encode(),
        PACKED,
        gzip.compress(BOM + ONE + b"\r\n" + TWO),
        gzip.compress(ONE + b"\n") + gzip.compress(TWO),
        PACKED + bytes(512),
        zstandard.compress(ONE + b"\n" + TWO),
        zstandard.compress(ONE + b"\n") + zstandard.compress(TWO),
        bz2.compress(ONE + b"\n" + TWO),
        bz2.compress(ONE + b"\n") + bz2.compress(TWO),
        lzma.compress(ONE + b"\n" + TWO),
        lzma.compress(ONE + b"\n") + bytes(8) + lzma.compress(TWO),
    ],
)
def test_marks_and_ends_of_lines_and_packing_change_nothing(data: bytes) -> None:
    found = read_file(data, "x")
    assert (found.kinds, found.refused, found.traces) == ({"conversations": 2}, 0, 2)


@pytest.mark.parametrize(
    ("data", "count", "said"),
    [
        (ONE + b"\n" + TWO[:30], 1, "line 2: Input data was truncated"),
        (b"[" + ONE + b"," + TWO[:30], 1, "item 2: .*nothing behind it was read"),
        (b"[" + ONE + b",\n" + TWO, 2, "item 3: the file ends within its array"),
        (b"[" + ONE + b"]\n" + TWO[:30], 1, "line 2: .*it is truncated: the file ends within it"),
        (b"[" + ONE + b"]]", 1, "line 1: .*Expecting value in line 1"),
        (
            pretty(1) + b"\n" + pretty(2).replace(b'"user",', b'"user"') + b"\n" + pretty(3),
            2,
            "^line 14: the document that begins here cannot be read: Expecting ',' delimiter in line 19; fix it",
        ),
        (pretty(1) + b"\n" + pretty(2)[:-20] + b"\n" + pretty(3), 2, "^line 14: "),
        (ONE + b"\n" + pretty(2)[:40] + b"\n" + pretty(3), 2, "^line 2: "),
        (pretty(1) + b"\n" + pretty(2)[:-20], 1, "^line 14: .*it is truncated: the file ends within it"),
        (
            b'{"data":[' + ONE + b'],\n"has_more":true}\n{"data":[' + TWO + b'],\n"has_more":true}',
            2,
            "what comes behind line 3: .* ask for the next pages too",
        ),
        (gzip.compress(ONE + b"\n" + TWO)[:-6], 2, "the end of the file: it is not a complete gzip file"),
        (PACKED + b"garbage", 2, "the end of the file: it is not a complete gzip file"),
        (
            zstandard.compress(ONE + b"\n") + zstandard.compress(TWO)[:-3],
            1,
            "the end of the file: it is not a complete zstd file",
        ),
        (zstandard.compress(ONE) + b"garbage", 1, "the end of the file: it is not a complete zstd file"),
        (bz2.compress(ONE) + b"garbage", 1, "the end of the file: it is not a complete bzip2 file"),
        (lzma.compress(ONE) + b"garbage", 1, "the end of the file: it is not a complete xz file"),
        (b'{"n":' + b"1" * 5000 + b"}\n" + ONE, 1, "line 1: .* cannot be read: a number of 5,000 digits; fix it"),
        (ONE + b"\n" + bytes(40), 1, "line 2"),
        (ONE + b"\n\xff\xfe", 1, "line 2"),
        (b'{"object":"list","has_more":true,"data":[' + ONE + b"]}", 1, "one page of an answer that has more"),
        (b'{"next_cursor":"c","data":[' + ONE + b"]}", 1, "one page of an answer that has more"),
        (b'{"data":[' + ONE + b'],"meta":{"page":1,"totalPages":3}}', 1, "one page of an answer that has more"),
        (b'{"data":[' + ONE + b'],"meta":{"cursor":"c"}}', 1, "one page of an answer that has more"),
        (b'{"data":[' + ONE + b'],"schema":{},"cursor":"c"}', 1, "one page of an answer that has more"),
        (b'{"events":[' + ONE + b'],"cursor":"c"}', 1, "one page of an answer that has more"),
        (b'{"runs":[' + ONE + b'],"cursors":{"next":"c"}}', 1, "one page of an answer that has more"),
    ],
)
def test_what_stands_before_the_damage_is_read_and_the_rest_is_named(data: bytes, count: int, said: str) -> None:
    found = read_file(data, "x")
    assert found.kinds == {"conversations": count}
    assert found.refused == 1
    [reason] = found.reasons
    assert re.search(said, reason), reason


@pytest.mark.parametrize(
    "data",
    [
        b'{"events":[%s],"cursor":null}',
        b'{"events":[%s]}',
        b'{"runs":[%s],"cursors":{"next":null},"parsed_query":null}',
    ],
)
def test_the_last_page_of_an_answer_is_read_whole(data: bytes) -> None:
    found = read_file(data.replace(b"%s", ONE + b"," + TWO), "x")
    assert (found.kinds, found.refused) == ({"conversations": 2}, 0)


def mostly_spaces() -> bytes:
    return b"{}" + b" " * (65 << 20)


def zipped() -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("runs.jsonl", ONE)
    return made.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b" \r\n\n", "it is empty"),
        (BOM, "it is empty"),
        (gzip.compress(b""), "it is empty"),
        (b"[]", "it is empty"),
        (gzip.compress(ONE)[:12], "not a complete gzip file"),
        (bytes.fromhex("28b52ffd") + bytes(20), "not a complete zstd file"),
        (zstandard.compress(gzip.compress(ONE)), "packed with gzip again"),
        (zstandard.compress(b""), "it is empty"),
        (zstandard.compress(ONE)[:10], "not a complete zstd file"),
        (bz2.compress(ONE)[:10], "not a complete bzip2 file"),
        (lzma.compress(ONE)[:20], "not a complete xz file"),
        (lambda: zstandard.compress(mostly_spaces()), "over 1000 times its size.*use zstd -d first"),
        (lambda: bz2.compress(mostly_spaces()), "over 1000 times its size.*use bzip2 -d first"),
        (lambda: lzma.compress(mostly_spaces(), preset=0), "over 1000 times its size.*use xz -d first"),
        (zipped(), "zip archive: unpack it first"),
        (ONE.decode().encode("utf-16"), "UTF-16"),
        (b"<!DOCTYPE html><title>Log in</title>", "a web page"),
        (b"name,value\n1,2\n", "neither JSON nor"),
        (b"PAR1" + bytes(20), "not a complete Parquet file"),
        (b"[[" + ONE + b"]]", "no JSON object"),
        (b'{"timestamp":"2026-01-01","type":"noted","payload":{}}', "it holds no run, only lines of type noted"),
    ],
)
def test_a_file_of_which_nothing_can_be_read_is_refused_with_the_cause(
    data: bytes | Callable[[], bytes], said: str
) -> None:
    with pytest.raises(Unreadable, match=said):
        read_file(data() if callable(data) else data, "x")


def test_a_packed_file_of_many_mebibytes_is_read_piece_by_piece_to_its_end() -> None:
    rows = b"".join(row(number) + b"\n" for number in range(40_000))
    mixed = [zstandard.compress(rows[: len(rows) // 2]), zstandard.compress(rows[len(rows) // 2 :])]
    for packed in (b"".join(mixed), bz2.compress(rows, 1)):
        items = ItemFile(BytesIO(packed), len(packed))
        assert [item["task_id"] for _, item in items] == list(range(40_000))


def test_without_zstandard_the_file_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(Unreadable, match=r"packed with zstd, and zstandard is not installed.*`zstd -d`"):
        read_file(b"\x28\xb5\x2f\xfd" + bytes(20), "x")


def test_conversations_of_a_packed_file_are_named_without_its_ending() -> None:
    names = ["runs.jsonl", "runs.jsonl.gz", "runs.jsonl.zst", "runs.jsonl.bz2", "runs.jsonl.xz"]
    assert {without_ending(name) for name in names} == {"runs.jsonl"}


def test_stored_completions_without_what_was_asked_are_counted_beside_the_others() -> None:
    asked = {
        **COMPLETION,
        "id": "chatcmpl-2",
        "messages": {"object": "list", "data": [{"role": "user", "content": "q"}]},
    }
    page = {"object": "list", "data": [COMPLETION, asked, {**COMPLETION, "id": "chatcmpl-3"}], "has_more": False}
    found = read_file(json.dumps(page).encode(), "x")
    assert found.kinds == {"stored completions": 1}
    assert found.refused == 2
    assert all("/chat/completions/{id}/messages" in reason for reason in found.reasons), "what has to be asked for"

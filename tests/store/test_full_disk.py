"""A disk that is full while the store writes: an error with its hint, then everything is there once.

The stand-in for a full disk is the system's limit on a file's size: the write itself fails, inside DuckDB.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from arttrace.store import Store
from arttrace.system.paths import DataDir

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no file size limits on Windows")

CHILD = """
import random, resource, sys
from pathlib import Path
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir
from arttrace.records.span import SpanRow
from arttrace.store import Store

store = Store.open(DataDir(Path(sys.argv[1])), create=True)
store._journal._max_segment_bytes = 1 << 20  # so that the journal itself is never over the limit
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))
failed = 0
for number in range(24):
    text = random.Random(number).randbytes(250_000).hex()
    try:
        store.append([SpanRow("1" * 32, f"{number + 1:016x}", "chat", 1, 2, attributes={"text": text})])
    except StoreError as error:
        assert "Free disk space" in str(error), error
        failed += 1
        if failed == 3:  # somebody makes room
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert failed >= 3, failed
assert len(store.spans("1" * 32)) == 24
store.close()
print("closed")
"""


OPENING = """
import resource, sys
from pathlib import Path
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir
from arttrace.store import Store

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]) << 10, resource.RLIM_INFINITY))
try:
    Store.open(DataDir(Path(sys.argv[1])), create=True)
except StoreError as error:
    print(error.hint)
"""


@pytest.mark.parametrize("kilobytes", [4, 16], ids=["for its file", "for its tables"])
def test_a_disk_without_room_for_a_store_is_not_taken_for_a_damaged_one(tmp_path: Path, kilobytes: int) -> None:
    program = [sys.executable, "-c", OPENING, str(tmp_path), str(kilobytes)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("Free disk space. Nothing is lost"), (done.stdout, done.stderr)
    Store.open(DataDir(tmp_path), create=True).close()


def test_a_full_disk_loses_and_doubles_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "closed\n", done.stderr
    with Store.open(DataDir(tmp_path)) as store:
        assert sorted(span.span_id for span in store.spans("1" * 32)) == [f"{n + 1:016x}" for n in range(24)]
        assert store.sql("SELECT count(*), count(DISTINCT span_id) FROM span_records")[1] == [(24, 24)]

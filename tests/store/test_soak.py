"""Memory stays where it is, however many spans come. Counted in spans, not in time, so that a busy machine changes
nothing; `benchmarks/collector.py --soak` shows the same of a whole collector over time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS, SPANS = 200, 8192

LOADER = f"""
import json, os, sys
from pathlib import Path
from arttrace.formats.journal_entry import encode_records
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir
from arttrace.records.span import SpanRow
from arttrace.store import Store

def span(n):
    message = [{{"role": "user", "parts": [{{"type": "text", "content": f"message {{n}}: " + "words " * 40}}]}}]
    attributes = {{"gen_ai.operation.name": "chat", "gen_ai.request.model": "policy"}}
    attributes["gen_ai.input.messages"] = json.dumps(message)
    start = 1_790_000_000_000_000_000 + n * 1_000_000
    trace_id, span_id = f"{{n // 64 + 1:032x}}", f"{{n + 1:016x}}"
    return SpanRow(trace_id, span_id, "chat policy", start, start + 500_000, attributes=attributes)

data = DataDir(Path(sys.argv[1]))
sizes = []
with Store.open(data, create=True) as store:
    for round in range({ROUNDS}):
        spool = JournalWriter(data.spool, fsync_interval_s=None)
        first = round * {SPANS}
        for at in range(first, first + {SPANS}, 256):
            spool.append(encode_records([span(n) for n in range(at, at + 256)]))
        spool.close()
        assert store.ingest_spool() == {SPANS}
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
print(json.dumps(sizes))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_at_the_end_of_a_soak_is_at_most_a_tenth_above_that_at_a_fifth_of_it(tmp_path: Path) -> None:
    """The least of 30 rounds each: what waits in memory is written to the file once in about 25, after which it is
    least; between, DuckDB takes up to three times as much, at rounds of its own choice."""
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path)], capture_output=True, text=True, check=True, timeout=3600
    )
    sizes = json.loads(done.stdout)
    early, late = (min(sizes[start : start + 30]) for start in (25, 170))
    print(f"{ROUNDS * SPANS:,} spans: {early / 1e6:.0f} MB around a fifth, {late / 1e6:.0f} MB around the end")
    assert late <= 1.1 * early, [round(size / 1e6) for size in sizes]

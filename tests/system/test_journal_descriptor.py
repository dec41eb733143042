"""The journal's file is none of the standard streams, which belong to everybody in the process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from arttrace.system.journal import list_segments, read_segment


@pytest.mark.skipif(os.name != "posix", reason="descriptors are POSIX's")
def test_a_journal_is_none_of_the_standard_streams_where_they_are_closed(tmp_path: Path) -> None:
    """C libraries write to them, and a program that becomes a daemon opens others in their place."""
    program = """
        import os, sys
        from pathlib import Path
        from arttrace.system.journal import JournalWriter
        for number in range(3):
            os.close(number)
        writer = JournalWriter(Path(sys.argv[1]), fsync_interval_s=None)
        writer.append(b"before")
        for number in range(3):
            try:
                os.write(number, b"somebody's")
            except OSError:
                pass
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        writer.append(b"after")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True, timeout=100)
    (segment,) = list_segments(tmp_path)
    assert [payload for _, payload in read_segment(segment.path)] == [b"before", b"after"]
    assert b"somebody's" not in segment.path.read_bytes()

"""The journal's file is none of the standard streams, which belong to everybody in the process, and none that a program
opens after it has closed all files."""

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


@pytest.mark.skipif(os.name != "posix", reason="descriptors are POSIX's")
@pytest.mark.parametrize(
    ("then", "numbers"), [("append", 4096), ("sync", 4096), ("close", 4096), ("fork", 4096), ("append", 80)]
)
def test_nothing_is_written_to_files_that_are_opened_where_all_were_closed(
    then: str, numbers: int, tmp_path: Path
) -> None:
    """So does a daemon that stays in its process, as where a service manager has started it."""
    program = """
        import os, resource, sys
        from pathlib import Path
        from arttrace.system.journal import JournalWriter
        numbers = int(sys.argv[3])
        resource.setrlimit(resource.RLIMIT_NOFILE, (numbers, numbers))
        writer = JournalWriter(Path(sys.argv[1]) / "journal", fsync_interval_s=None)
        writer.append(b"before")
        os.closerange(3, numbers)
        users = [open(f"{sys.argv[1]}/{number}", "w+") for number in range(4 if numbers > 200 else 0)]
        then = sys.argv[2]
        if then == "fork" and (child := os.fork()):
            assert os.waitpid(child, 0)[1] == 0
        elif then in ("sync", "close"):
            getattr(writer, then)()
        writer.append(b"after")
        writer.sync()
        writer.append(b"later")
        writer.close()
        for file in users:
            file.write("mine")
            file.flush()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), then, str(numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    written = [payload for each in list_segments(tmp_path / "journal") for _, payload in read_segment(each.path)]
    assert written.count(b"before") == 1
    assert written.count(b"after") == written.count(b"later") == (2 if then == "fork" else 1)
    assert all(file.read_text() in ("mine", "minemine") for file in tmp_path.iterdir() if file.is_file())

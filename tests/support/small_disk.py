"""A small disk of its own for a test, which fills up or cannot be written. Only root can mount one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

only_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root mounts a small disk")


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[None]:
    """Mounts a disk in memory on the directory with these mount options (`size=16m`), or skips the test."""
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no mounting here: {mounted.stderr}")
    try:
        yield
    finally:
        gc.collect()  # of a learner that is still in a circle, files may be mapped
        subprocess.run(["umount", str(path)], check=True)

"""The attention kernel compiled for a GPU that is not there, by PyTorch's Inductor and Triton's own compilers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"
SHARED_MEMORY = 232_448
"""Bytes that a block of threads may use on an H100 and an H200."""


def triton_of_the_requirements() -> str:
    found = re.search(r"^triton==\S+", (ROOT / "requirements" / "cuda.txt").read_text(), re.MULTILINE)
    assert found
    return found.group()


@pytest.mark.full
def test_every_kind_of_attention_compiles_for_a_card_forward_and_backward(tmp_path: Path) -> None:
    """Its numbers, at any length by one formula, are those of test_kernels.py; that the card computes them is not."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "triton")]
    subprocess.run([*install, triton_of_the_requirements()], check=True, timeout=600)
    path = os.pathsep.join(map(str, (tmp_path / "triton", SUPPORT, ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "kernels")
    command = [sys.executable, str(SUPPORT / "kernels_for_a_card.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 6
    for name, compiled in found.items():
        lengths = 2 if "lengths" in name else 1
        names = [kernel for kernel, _ in compiled["kernels"]]
        assert compiled["graphs"] == lengths, "compiled for one length, then for any"
        assert sum("backward" in kernel for kernel in names) == len(names) / 2 == lengths, names
        assert all(shared <= SHARED_MEMORY for _, shared in compiled["kernels"]), name

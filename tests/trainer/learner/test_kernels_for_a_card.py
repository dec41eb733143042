"""Kernels for a GPU that is not there: compiled by PyTorch's Inductor and Triton's own compilers, or interpreted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"
SHARED_MEMORY = 232_448
"""Bytes that a block of threads may use on an H100 and an H200."""


def triton_of_the_requirements() -> str:
    found = re.search(r"^triton==\S+", (ROOT / "requirements" / "cuda.txt").read_text(), re.MULTILINE)
    assert found
    return found.group()


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Triton alone, which is not installed beside a PyTorch without CUDA."""
    folder = tmp_path_factory.mktemp("triton")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, triton_of_the_requirements()], check=True, timeout=600)
    return folder


def run(triton: Path, scratch: Path, program: str, *arguments: str, **more: str) -> Any:
    """The last line that a program beside Triton prints."""
    environment = {**os.environ, **more, "PYTHONPATH": os.pathsep.join(map(str, (triton, SUPPORT, ROOT)))}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"), "TRITON_CACHE_DIR": str(scratch / "kernels")}
    command = [sys.executable, str(SUPPORT / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_trls_kernel_gives_the_numbers_of_the_chunks(triton: Path, tmp_path: Path) -> None:
    assert run(triton, tmp_path, "trl_kernel_interpreted.py", TRITON_INTERPRET="1") < 1e-5


@pytest.mark.full
def test_every_kind_of_attention_compiles_for_a_card_forward_and_backward(triton: Path, tmp_path: Path) -> None:
    """Its numbers, at any length by one formula, are those of test_kernels.py; that the card computes them is not."""
    found = run(triton, tmp_path, "kernels_for_a_card.py", str(tmp_path))
    assert len(found) == 6
    for name, compiled in found.items():
        lengths = 2 if "lengths" in name else 1
        names = [kernel for kernel, _ in compiled["kernels"]]
        assert compiled["graphs"] == lengths, "compiled for one length, then for any"
        assert sum("backward" in kernel for kernel in names) == len(names) / 2 == lengths, names
        assert all(shared <= SHARED_MEMORY for _, shared in compiled["kernels"]), name


@pytest.mark.full
def test_steps_on_a_card_are_those_on_a_cpu(tmp_path: Path) -> None:
    """The card's memory and kernels are the machine's own, its rules on devices and precisions a card's."""
    found = run(tmp_path, tmp_path, "steps_on_a_card.py", str(tmp_path))
    assert len(found) == 13
    for name, (on_cpu, on_card) in found.items():
        within = 1e-4 if "float32" in name else 0.1
        assert on_card == pytest.approx(on_cpu, rel=within, abs=within / 2), name

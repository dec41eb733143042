"""How much of a card vLLM takes beside a learner, and how it learns that."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.gateway.engines.vllm.engine import EngineOptions, engine_command
from trainer.gateway.engines.vllm.memory import card_bytes, share_of_card
from trainer.gateway.engines.vllm.model import ModelShape
from trainer.learner.machine.needs import LearnerNeeds

GIB = 1 << 30
QWEN_4B = LearnerNeeds(weights=8 * GIB, lora=GIB // 2, token=424 * 1024)


def test_the_engine_takes_what_a_learner_leaves() -> None:
    large = share_of_card(140 * GIB, QWEN_4B, sleeps=False, alone=False)
    small = share_of_card(48 * GIB, QWEN_4B, sleeps=False, alone=False)
    assert large.value is not None
    assert small.value is not None
    assert small.value < large.value < 0.92
    for total, share in ((140, large), (48, small)):
        assert (1 - share.value) * total > 8 + 0.5 + 8192 * QWEN_4B.token / GIB  # type: ignore[operator]
    assert (small.value, large.value) == (0.51, 0.73)
    assert "a learner on the same card needs beside it 23.5 GiB" in small.reason
    huge = share_of_card(1000 * GIB, QWEN_4B, sleeps=False, alone=False)
    assert huge.value == 0.92


def test_more_than_vllm_takes_by_itself_is_never_asked_for() -> None:
    if (vllm := importlib.util.find_spec("vllm")) is None:
        pytest.skip("vLLM is not installed")
    settings = (Path(str(vllm.origin)).parent / "config" / "cache.py").read_text()
    usual = re.search(r"gpu_memory_utilization: float = Field\(default=([\d.]+)", settings)
    assert usual is not None
    assert share_of_card(1000 * GIB, QWEN_4B, sleeps=False, alone=False).value == float(usual.group(1))


def test_an_engine_that_sleeps_only_leaves_what_the_learner_keeps() -> None:
    awake = share_of_card(48 * GIB, QWEN_4B, sleeps=False, alone=False)
    asleep = share_of_card(48 * GIB, QWEN_4B, sleeps=True, alone=False)
    assert asleep.value is not None
    assert awake.value is not None
    assert asleep.value > awake.value
    assert "keeps between its steps" in asleep.reason
    assert share_of_card(None, QWEN_4B, sleeps=True, alone=False).value == 0.6


def test_what_does_not_fit_is_said_with_a_way_out() -> None:
    tight = share_of_card(24 * GIB, QWEN_4B, sleeps=False, alone=False)
    assert tight.value is None
    assert "no room" in tight.reason
    assert "--sleep-while-training" in tight.reason
    assert share_of_card(24 * GIB, QWEN_4B, sleeps=True, alone=False).value == pytest.approx(0.58)
    assert share_of_card(24 * GIB, QWEN_4B, sleeps=False, alone=True).value is None


def test_it_is_passed_to_vllm_on_a_card_alone_and_the_users_word_comes_last() -> None:
    options = EngineOptions(Path("/m"), ModelShape("m", 100, 1, 64, True), memory_share=0.55)
    command = engine_command(options, Path("/s"), "m", cpu=False)
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.55"
    assert "--gpu-memory-utilization" not in engine_command(options, Path("/s"), "m", cpu=True)
    assert "--gpu-memory-utilization" not in engine_command(
        replace(options, memory_share=None), Path("/s"), "m", cpu=False
    )


def test_a_cards_memory_is_asked_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert card_bytes(None) is None, "no such program"
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 143771\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path), "/bin", "/usr/bin")))
    assert card_bytes("0") == 143771 << 20
    program.write_text("#!/bin/sh\nexit 9\n")
    assert card_bytes("7") is None

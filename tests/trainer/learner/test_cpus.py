"""Machines without AVX-512, with it, and with its bfloat16 part (what AMX machines take): what is loaded and computed.

Which build of vLLM's own code is taken follows from two answers of torch, which a test can give in torch's stead; what
the machine at hand has more does not matter. torch, oneDNN and glibc have switches of their own. That nothing uses an
instruction above AVX2 all the same is for an emulator to show. What needs none of this is in test_engines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from tiny_model import make_base_model

from arttrace.system.cpu import cpu_features
from trainer.learner.interface import Sample

pytestmark = pytest.mark.full

EMULATOR = shutil.which("qemu-x86_64")

AVX2_ONLY = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ",
}

BUILDS = {"_C_AVX2": ("avx2", False, False), "_C_AVX512": ("avx512f", True, False), "_C": ("avx512_bf16", True, True)}
"""vLLM's builds for x86-64: the feature that each needs, and what torch says of AVX-512 and of its bfloat16 there."""

HERE = [build for build, (feature, *_) in BUILDS.items() if feature in cpu_features()]

KERNELS = """
import sys
import torch, torch.cpu
build, *says = sys.argv[1:]
if says:
    torch.cpu._is_avx512_supported, torch.cpu._is_avx512_bf16_supported = (lambda s=s: s == "True" for s in says)
from vllm.platforms import current_platform
current_platform.import_kernels()
maps = open("/proc/self/maps").read()
loaded = sorted({name for name in ("_C", "_C_AVX2", "_C_AVX512") if f"/vllm/{name}.abi3.so" in maps})
assert loaded == [build], loaded
given = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
out = torch.empty(3, 32)
torch.ops._C.silu_and_mul(out, given)
expected = torch.nn.functional.silu(given[:, :32]) * given[:, 32:]
assert torch.allclose(out, expected, atol=1e-5), (out - expected).abs().max()
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.parametrize("build", HERE)
def test_vllm_takes_the_code_of_the_machine_and_it_computes_the_same(build: str) -> None:
    _, *says = BUILDS[build]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", KERNELS, build, *map(str, says)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | (AVX2_ONLY if build == "_C_AVX2" else {}),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "AVX2" if build == "_C_AVX2" else done.stdout.startswith("AVX512")


def test_unsloth_loads_by_switches_for_avx2() -> None:
    program = (
        "import torch; assert torch.backends.cpu.get_cpu_capability() == 'AVX2'; "
        "from trainer.output.quiet import import_unsloth; import_unsloth(); "
        "torch.nn.functional.conv2d(torch.ones(1, 16, 64, 64), torch.ones(16, 16, 3, 3))"
    )
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | AVX2_ONLY | {"ONEDNN_VERBOSE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"cpu,isa:Intel AVX2\s", done.stdout), done.stdout[:3000]


def emulated(*arguments: str, given: bytes = b"") -> str:
    """What a Python program prints on an emulated CPU with AVX2 only."""
    assert EMULATOR is not None
    done = subprocess.run(
        [EMULATOR, "-cpu", "Haswell", sys.executable, "-X", "faulthandler", "-c", *arguments],
        input=given,
        capture_output=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode()


on_an_emulated_cpu = pytest.mark.skipif(EMULATOR is None, reason="qemu-x86_64 is not installed (Debian: qemu-user)")


@on_an_emulated_cpu
def test_vllm_takes_and_computes_by_its_code_for_avx2_on_an_emulated_cpu() -> None:
    assert emulated(KERNELS, "_C_AVX2").strip() == "AVX2"


STEP = """
import dataclasses, json, sys
from pathlib import Path
import msgspec
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import Sample
from arttrace.records.sequence import TokenSequence

samples = msgspec.json.decode(sys.stdin.buffer.read(), type=list[tuple[list[TokenSequence], float]])
samples = [Sample(tuple(sequences), advantage) for sequences, advantage in samples]
config = LearnerConfig(learning_rate=1e-2, lora_rank=8, max_logprob_difference=1e9, loader="unsloth")
found = []
for engine in ("packed", "trl"):
    learner = make_learner(Path(sys.argv[1]), dataclasses.replace(config, engine=engine))
    learner.step(samples)
    found.append(learner.step(samples).grad_norm)
import torch
assert torch.backends.cpu.get_cpu_capability() == sys.argv[2], torch.backends.cpu.get_cpu_capability()
print(json.dumps(found))
"""


@on_an_emulated_cpu
def test_a_model_loaded_by_unsloth_is_trained_alike_on_an_emulated_cpu(
    base_model: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    samples = msgspec.json.encode([(s.sequences, s.advantage) for s in make_samples(0)])
    here = [sys.executable, "-c", STEP, str(base_model), torch.backends.cpu.get_cpu_capability()]
    wanted = json.loads(subprocess.run(here, input=samples, capture_output=True, timeout=600, check=True).stdout)
    assert json.loads(emulated(STEP, str(base_model), "AVX2", given=samples)) == pytest.approx(wanted, rel=1e-4)


ANSWER = """
import json, os, sys
os.environ |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
from vllm import LLM, SamplingParams
engine = LLM(sys.argv[1], enforce_eager=True, max_model_len=128, max_num_seqs=2, dtype="float32")
[answer] = engine.generate(["Where?"], SamplingParams(temperature=0, max_tokens=4, logprobs=0))
[answer] = answer.outputs
logprobs = [step[token].logprob for token, step in zip(answer.token_ids, answer.logprobs, strict=True)]
print()
print(json.dumps([list(answer.token_ids), logprobs]))
"""


@on_an_emulated_cpu
def test_vllm_answers_alike_on_an_emulated_cpu(tmp_path: Path) -> None:
    """In one process: an emulator does not follow a program that is started by the emulated one."""
    model = str(make_base_model(tmp_path))
    here = subprocess.run(
        [sys.executable, "-c", ANSWER, model], capture_output=True, text=True, timeout=600, check=True
    )
    (ids, logprobs), (found, theirs) = (
        json.loads(text.splitlines()[-1]) for text in (here.stdout, emulated(ANSWER, model))
    )
    assert found == ids
    assert theirs == pytest.approx(logprobs, abs=1e-4)

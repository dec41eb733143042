"""Machines without AVX-512, with it, and with its bfloat16 part (what AMX machines take): what is loaded and computed.

Which build of vLLM's own code is taken follows from two answers of torch, which a test can give in torch's stead; what
the machine at hand has more does not matter. torch, oneDNN and glibc have switches of their own. That nothing uses an
instruction above AVX2 all the same is for an emulator to show. What needs none of this is in test_engines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from arttrace.system.cpu import cpu_features

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
build, avx512, bfloat16 = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"
torch.cpu._is_avx512_supported = lambda: avx512
torch.cpu._is_avx512_bf16_supported = lambda: bfloat16
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


@pytest.mark.skipif(EMULATOR is None, reason="qemu-x86_64 is not installed (Debian: qemu-user)")
@pytest.mark.parametrize(
    "program",
    [
        "import torch; assert not torch.cpu._is_avx512_supported(); "
        "from trainer.output.quiet import import_unsloth; import_unsloth()",
        "from vllm.platforms import current_platform; current_platform.import_kernels(); "
        "import torch; assert hasattr(torch.ops._C, 'silu_and_mul')",
    ],
    ids=["unsloth", "vllm"],
)
def test_it_loads_without_avx512(program: str) -> None:
    assert EMULATOR is not None
    done = subprocess.run(
        [EMULATOR, "-cpu", "Haswell", sys.executable, "-X", "faulthandler", "-c", program],
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr[-3000:]

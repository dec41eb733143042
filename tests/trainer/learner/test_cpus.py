"""A CPU with AVX2 and nothing above it, emulated: Unsloth and vLLM's own code load there.

What needs no emulator, with a stand-in for such a CPU, is in test_engines.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

EMULATOR = shutil.which("qemu-x86_64")


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

"""The features of the machine's CPU, as Linux reports them."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cpu_features() -> tuple[str, ...]:
    """The names of its features, sorted; empty if they are not known."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    named = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return tuple(sorted(named.partition(":")[2].split()))


def missing_for_vllm() -> str:
    """The feature that vLLM's CPU build needs and this CPU lacks, or ""."""
    features = cpu_features()
    return "AVX2" if features and platform.machine().lower() in ("x86_64", "amd64") and "avx2" not in features else ""

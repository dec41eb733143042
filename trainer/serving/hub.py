"""A base model by its directory, or by its name on the Hugging Face hub: taken from the hub's cache, or fetched."""

from __future__ import annotations

import os
import re
from pathlib import Path

from arttrace.records.values.users_text import first_line
from arttrace.system.errors import ServingError
from arttrace.system.processes import signals_after_imports
from trainer.gateway.engines.vllm.model import require_utf8

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHORT = {
    r"qwen-?2\.5-([\d.]+b)": r"Qwen/Qwen2.5-{}-Instruct",
    r"qwen-?3-([\d.]+b)": r"Qwen/Qwen3-{}",
    r"llama-?3-8b": "meta-llama/Meta-Llama-3-8B-Instruct",
    r"llama-?3\.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    r"mistral-7b": "mistralai/Mistral-7B-Instruct-v0.3",
}
"""Names that ART's users write, and those on the hub."""
_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
_WEIGHTS = "*.safetensors"
_FOR_OTHERS = ["consolidated*", "original/*"]
"""The same weights again, as the libraries of Mistral and Meta have them."""


def find_base_model(given: str, *, weights: bool = True) -> tuple[Path, str]:
    """The directory of a base model and its name. Raises ServingError where a name on the hub cannot be had, and for a
    path that is not UTF-8: the versions trained on it name it in JSON. Without `weights` these are not fetched.

    huggingface_hub's own settings count: its cache, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE.
    """
    path = Path(given).absolute()
    require_utf8(path)
    if not path.exists():
        given = hub_name(given)
    if path.exists() or _NAME.fullmatch(given) is None or given.startswith("."):
        return path, path.resolve().name
    with signals_after_imports():
        from huggingface_hub import snapshot_download

    try:
        wanted = [*_FILES, _WEIGHTS] if weights else _FILES
        found = Path(snapshot_download(given, allow_patterns=wanted, ignore_patterns=_FOR_OTHERS))
    except Exception as error:  # whatever the hub's client and the network raise
        hub = os.environ.get("HF_ENDPOINT", "the Hugging Face hub")
        raise ServingError(
            f"there is no directory {given}, and {given} could not be had from {hub}: {first_line(error)}",
            f"Where the hub can be reached: hf download {given} --local-dir models/{given.rpartition('/')[2]} (with "
            "HF_TOKEN for a model behind a licence). Bring that directory here and name it with --base-model.",
        ) from error
    return found, given.rpartition("/")[2]


def hub_name(given: str) -> str:
    """The name on the hub for a short one ("qwen-2.5-7b"); any other as it is."""
    for short, full in _SHORT.items():
        if found := re.fullmatch(short, given, re.IGNORECASE):
            return full.format(*(size.upper() for size in found.groups()))
    return given

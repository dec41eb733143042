"""The tokenizer in a model's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arttrace.system.errors import TrainingError
from arttrace.system.processes import signals_after_imports


def read_tokenizer(directory: Path) -> Any:
    """As transformers loads it, without the network. Raises TrainingError when it cannot."""
    with signals_after_imports():
        from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise TrainingError(f"The tokenizer in {directory} cannot be loaded: {error}") from error

"""Import transformers and TRL without half of what it takes: each goes through the list of every installed file, and
transformers through the source of each of its models twice."""

from __future__ import annotations

import email
import importlib.metadata
import os
from collections.abc import Iterator
from importlib.metadata import Distribution, PackagePath
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

LOOKED_THROUGH = "transformers.utils.import_utils"


def import_quickly() -> None:
    """What is imported from now on does so. The numbers, names and classes that come of it are the same."""
    if hasattr(importlib.metadata, "_top_level_inferred"):
        importlib.metadata.packages_distributions = packages_distributions
    wrapt.register_post_import_hook(_read_models_once, LOOKED_THROUGH)


def packages_distributions() -> dict[str, list[str]]:
    """What `importlib.metadata.packages_distributions` returns: the distributions that install each top-level package.

    That one makes several objects for each of some 60,000 files that are installed, to find out how its path begins.
    """
    found: dict[str, list[str]] = {}
    for one in importlib.metadata.distributions():
        packages = _internal("_top_level_declared")(one) or _internal("_top_level_inferred")(_Condensed(one))
        name: Any = None
        for package in packages:
            name = name or _name(one)
            found.setdefault(package, []).append(name)
    return found


def _internal(name: str) -> Any:
    """How this version of Python tells packages by paths."""
    return getattr(importlib.metadata, name)


def _name(one: Distribution) -> Any:
    """`one.metadata["Name"]`, from the head of its file: behind it is a whole README."""
    text = one.read_text("METADATA") or one.read_text("PKG-INFO") or one.read_text("") or ""
    return email.message_from_string(text.partition("\n\n")[0])["Name"]


class _Condensed:
    """A distribution as far as packages are told by: of all files that begin and end alike it has one."""

    def __init__(self, whole: Distribution) -> None:
        self._whole = whole

    @property
    def files(self) -> list[PackagePath] | None:
        record = self._whole.read_text("RECORD")
        if not record or '"' in record:  # a path that is quoted
            return self._whole.files
        return list(map(PackagePath, _of_each_kind(record)))


def _of_each_kind(record: str) -> Iterator[str]:
    seen = set()
    for line in record.splitlines():
        path = line.partition(",")[0]
        first, below, _ = path.partition("/")
        kind = (first, below, path.endswith(".py"))
        if kind not in seen:
            seen.add(kind)
            yield path


def _read_models_once(utils: ModuleType) -> None:
    """It keeps what it has read of a folder, by the words for the folder, and asks for that of all models in two."""
    if (read := getattr(utils, "create_import_structure_from_path", None)) is None:
        return

    def read_once(path: str | os.PathLike[str]) -> Any:
        return read(str(Path(path).parent if Path(path).is_file() else path))

    utils.create_import_structure_from_path = read_once  # type: ignore[attr-defined]

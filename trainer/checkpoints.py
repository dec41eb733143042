"""Checkpoints: every version of a policy in a directory of its own, whole or not there at all.

`<root>/<policy>/<policy>@<N>/` holds the adapter, the trainer's state and `manifest.json`, which says what the step
consumed. A version is written into a hidden directory, synced to disk and renamed: whoever sees the name sees all of
it, and a killed process leaves only a hidden directory that the next write removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from arttrace.errors import TrainingError
from arttrace.records.policy import PolicyStep

_MANIFEST = "manifest.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Checkpoints:
    """The versions of one policy under `root`. Any process may read; one process at a time writes."""

    def __init__(self, root: Path, policy: str) -> None:
        """Raises TrainingError when `policy` cannot be a directory's and a model's name."""
        if not _NAME.fullmatch(policy):
            raise TrainingError(
                f"{policy!r} cannot name a policy.", "Use letters, digits, '.', '_' and '-', at most 100, no '@'."
            )
        self.policy = policy
        self.directory = root / policy

    def path(self, step: int) -> Path:
        """Where version `step` lies, or would lie."""
        return self.directory / f"{self.policy}@{step}"

    def steps(self) -> list[int]:
        """The steps of all whole versions, ascending."""
        if not self.directory.is_dir():
            return []
        prefix = f"{self.policy}@"
        numbers = (
            entry.name.removeprefix(prefix)
            for entry in self.directory.iterdir()
            if entry.name.startswith(prefix) and (entry / _MANIFEST).is_file()
        )
        return sorted(int(number) for number in numbers if number.isdecimal())

    def latest(self) -> int | None:
        """The newest whole version's step, None when there is none."""
        steps = self.steps()
        return steps[-1] if steps else None

    def manifest(self, step: int) -> PolicyStep:
        """What version `step` says about itself. Raises TrainingError when it is missing or damaged."""
        path = self.path(step) / _MANIFEST
        try:
            return msgspec.json.decode(path.read_bytes(), type=PolicyStep)
        except FileNotFoundError:
            raise TrainingError(f"There is no version {self.policy}@{step}: {path} is missing.") from None
        except (OSError, msgspec.DecodeError) as error:
            raise TrainingError(
                f"The manifest {path} cannot be read: {error}.",
                "Without it nobody knows which trajectories that step consumed: restore it, or move the version away.",
            ) from error

    def consumed_ids(self) -> frozenset[str]:
        """The ids of all trajectories that any version was trained on."""
        return frozenset(entry.trajectory_id for step in self.steps() for entry in self.manifest(step).consumed)

    def write(self, step: int, save: Callable[[Path], None], manifest: PolicyStep) -> Path:
        """Write version `step` and return its directory: `save` fills it, the manifest is added.

        `manifest.adapter` is set to the directory. When this returns the version is on disk; when it raises, nothing
        is left of it. Raises TrainingError when the version exists, the manifest is another version's, or the disk
        refuses; whatever `save` raises passes through.
        """
        final = self.path(step)
        if (manifest.policy, manifest.step) != (self.policy, step):
            raise TrainingError(f"The manifest of {manifest.version} cannot be written as {self.policy}@{step}.")
        if final.exists():
            raise TrainingError(
                f"{final} exists already; a version is never written over.",
                f"Continue from the newest version ({self.policy}@{self.latest()}), or move the directory away.",
            )
        temporary = self.directory / f".{final.name}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            temporary.mkdir()
            save(temporary)
            document = msgspec.structs.replace(manifest, adapter=str(final))
            (temporary / _MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
            _sync_tree(temporary)
            temporary.rename(final)
            _sync(self.directory)
        except OSError as error:
            raise TrainingError(
                f"{self.policy}@{step} could not be written under {self.directory}: {error}.",
                "Make room or mend the permissions, then train on: the step before is whole.",
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return final

    def _remove_leftovers(self) -> None:
        for entry in self.directory.glob(f".{self.policy}@*.*.*"):
            if not _alive(int(pid) if (pid := entry.name.split(".")[-2]).isdecimal() else 0):
                shutil.rmtree(entry, ignore_errors=True)


def _alive(pid: int) -> bool:
    """Whether another living process may still be writing under this number."""
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync_tree(directory: Path) -> None:
    for entry in directory.rglob("*"):
        _sync(entry)
    _sync(directory)


def _sync(path: Path) -> None:
    """fsync a file or directory; some systems cannot open or sync a directory, and need not."""
    if path.is_dir():
        with contextlib.suppress(PermissionError):
            _fsync(path)
    else:
        _fsync(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

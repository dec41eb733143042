"""Checkpoints: every version of a policy in a directory of its own, whole or not there at all.

`<root>/<policy>/<policy>@<N>/` holds the adapter, the trainer's state and `manifest.json`, which says what the step
consumed. It is a version once it has a manifest, which is renamed into place when all the rest is synced to disk. A
killed process leaves a hidden directory that the next write removes, or an adapter without a manifest, which an engine
may serve: the same adapter made again takes its place, another one takes the next number, so that no name ever stands
for two. Of a pruned version `pruned.json`
stays, its manifest under another name: what it consumed stays known, and its number is never given again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from arttrace.records.policy import PolicyStep
from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.errors import MayPass, TrainingError
from arttrace.system.files import disk_is_full, replace_file
from arttrace.system.journal.lock import acquire
from arttrace.system.paths import TRAINING_LOCK, can_name_a_policy, require_policy_name
from arttrace.system.private_files import make_directory
from arttrace.system.processes import is_alive
from trainer.policies.files import DROPPED, STATE
from trainer.policies.same_adapter import same_adapter
from trainer.policies.spare_file import ROOM, Room

_MANIFEST, _PRUNED, _ROLLBACK = "manifest.json", "pruned.json", "rollback.json"
_UNFINISHED = ".manifest.json"

_HANDED_OVER = "handed_over"
_LOCK_WITHIN_S = 1.0


class CheckpointError(TrainingError, MayPass):
    """The disk refuses a version; what was there before is whole."""


@dataclass(frozen=True, slots=True)
class Use:
    """Ids of what version `step` took by `method`, or inherited as taken so; `trained` are those not set aside."""

    method: str
    step: int
    ids: frozenset[str]
    trained: frozenset[str]
    inherited_from: str = ""


class _Rollback(msgspec.Struct, frozen=True):
    """`newest` was the newest version when `step` was chosen over it."""

    step: int
    newest: int


class Checkpoints:
    """The versions of one policy under `root`. Any process may read; one process at a time writes."""

    def __init__(self, root: Path, policy: str) -> None:
        """Raises TrainingError when `policy` cannot be a directory's and a model's name."""
        require_policy_name(policy)
        self.policy = policy
        self.directory = root / policy
        self._room = Room(self.directory)

    def path(self, step: int) -> Path:
        """Where version `step` lies, or would lie."""
        return self.directory / f"{self.policy}@{step}"

    def steps(self) -> list[int]:
        """The steps of all whole versions, ascending."""
        return self._with_file(_MANIFEST)

    def all_steps(self) -> list[int]:
        """The steps of all versions, pruned ones too, ascending."""
        return sorted({*self._with_file(_MANIFEST), *self._with_file(_PRUNED)})

    def _with_file(self, name: str) -> list[int]:
        if not self.directory.is_dir():
            return []
        prefix = f"{self.policy}@"
        numbers = (
            entry.name.removeprefix(prefix)
            for entry in self.directory.iterdir()
            if entry.name.startswith(prefix) and (entry / name).is_file()
        )
        return sorted(int(number) for number in numbers if number.isdecimal())

    def latest(self) -> int | None:
        """The newest whole version's step, None when there is none."""
        steps = self.steps()
        return steps[-1] if steps else None

    def served(self) -> int | None:
        """The version that serving begins with: the one rolled back to, until a newer one is made; else the newest.

        0 is the base model, None that there is no version.
        """
        newest = self.latest()
        try:
            back = msgspec.json.decode((self.directory / _ROLLBACK).read_bytes(), type=_Rollback)
        except (OSError, *UNREADABLE):
            return newest
        there = back.step == 0 or back.step in self.steps()
        return back.step if there and back.newest == newest else newest

    def roll_back(self, step: int) -> None:
        """Let serving begin with version `step` (0: the base model) until a version is made that is newer than all."""
        newest = self.latest()
        if newest is None or (step and step not in self.steps()):
            raise TrainingError(
                f"There is no version {self.policy}@{step} to serve.", "`arttrace policies` lists those with weights."
            )
        replace_file(self.directory / _ROLLBACK, msgspec.json.encode(_Rollback(step, newest)))

    def manifest(self, step: int) -> PolicyStep:
        """What version `step` says about itself, also when it was pruned. Raises TrainingError when it is missing or
        damaged."""
        path = self.path(step) / _MANIFEST
        if not path.exists() and (pruned := self.path(step) / _PRUNED).exists():
            path = pruned
        try:
            return msgspec.json.decode(path.read_bytes(), type=PolicyStep)
        except FileNotFoundError:
            missing = f": {path} is missing" if self.path(step).exists() else ""
            raise TrainingError(
                f"There is no version {self.policy}@{step}{missing}.",
                "`arttrace policies` lists the versions.",
            ) from None
        except (OSError, *UNREADABLE) as error:
            raise TrainingError(
                f"The manifest {path} cannot be read: {error}.",
                "Without it nobody knows which trajectories that step consumed: restore it, or move the version away.",
            ) from error

    def consumed_ids(self, method: str | None = None) -> frozenset[str]:
        """The ids of all trajectories that any version took or inherited, by `method` (None: by any)."""
        return frozenset(id for use in self.uses() if method in (None, use.method) for id in use.ids)

    def uses(self) -> list[Use]:
        """What each version took, by method, in order of the versions."""
        found: list[Use] = []
        for done in map(self.manifest, self.all_steps()):
            by_method: dict[str, dict[str, bool]] = {}
            for one in done.consumed:
                by_method.setdefault(one.method or done.made_by, {})[one.trajectory_id] = one.set_aside
            for method, taken in by_method.items():
                trained = frozenset(id for id, aside in taken.items() if not aside)
                found.append(Use(method, done.step, frozenset(taken), trained, done.forked_from))
        return found

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
        with self._written(step) as temporary:
            save(temporary)
            self._add_manifest(temporary, final, manifest)
            temporary.rename(final)
            _sync(self.directory)
        return final

    def hand_over(self, save: Callable[[Path], None]) -> tuple[int, Path]:
        """Write the adapter of the next version where the version will lie, and return its step and that directory:
        `save` fills it. It is no version before `complete`. The disk is waited for as far as the directory's name: a
        number that was handed over is not given to other weights, whatever a reset leaves of these.

        Raises as `write` does; nothing is left then.
        """
        step = (self.latest() or 0) + 1
        with self._written(step) as temporary:
            self._room.take(temporary)
            save(temporary)
            (temporary / ROOM).unlink(missing_ok=True)
            (temporary / _HANDED_OVER).touch()
            while (final := self.path(step)).exists():
                if same_adapter(temporary, final):
                    return step, final
                step += 1
            temporary.rename(final)
            _sync(self.directory)
        return step, final

    def complete(self, step: int, save: Callable[[Path], None], manifest: PolicyStep) -> Path:
        """Make what was handed over a version: `save` adds the rest, the manifest comes last. When this returns all of
        it is on disk. Raises as `write` does; the adapter stays then, and once the manifest is there all of it."""
        final = self.path(step)
        if (manifest.policy, manifest.step) != (self.policy, step):
            raise TrainingError(f"The manifest of {manifest.version} cannot be written as {self.policy}@{step}.")
        with self._refusals(step):
            try:
                if step not in self.steps():
                    save(final)
                    self._add_manifest(final, final, manifest)
            except BaseException:
                for name in () if step in self.steps() else (STATE, _UNFINISHED):
                    (final / name).unlink(missing_ok=True)
                raise
            (final / _HANDED_OVER).unlink(missing_ok=True)
            _sync(final)
            _sync(self.directory)
        self._room.make(final / "adapter_model.safetensors")
        return final

    def _add_manifest(self, directory: Path, final: Path, manifest: PolicyStep) -> None:
        """Sync a version's directory, which will lie at `final`, and put the manifest into it."""
        document = msgspec.structs.replace(manifest, adapter=str(final))
        (directory / _UNFINISHED).write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
        _sync_tree(directory)
        (directory / _UNFINISHED).rename(directory / _MANIFEST)
        _sync(directory)

    @contextlib.contextmanager
    def _written(self, step: int) -> Iterator[Path]:
        """A hidden directory to write a version into; gone afterwards, unless it was renamed."""
        temporary = self.directory / f".{self.path(step).name}.{os.getpid()}.{secrets.token_hex(4)}"
        with self._refusals(step):
            try:
                make_directory(self.directory)
                self._remove_leftovers()
                temporary.mkdir()
                yield temporary
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    @contextlib.contextmanager
    def _refusals(self, step: int) -> Iterator[None]:
        """What the disk refuses inside is a CheckpointError."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, OSError) and not disk_is_full(self.directory):
                raise
            raise CheckpointError(
                f"{self.policy}@{step} could not be written under {self.directory}: {error}.",
                "Free disk space or correct the permissions, then train on: the step before is whole.",
            ) from error

    def prune(self, steps: Iterable[int]) -> list[int]:
        """Remove the weights of versions and keep their manifests; returns those that were there. The newest stays, and
        the one that was rolled back to.

        A kill half-way leaves a version that is pruned already in everybody's eyes; the next call removes the rest.
        """
        there = set(self.steps()[:-1]) - {self.served()}
        gone = sorted(there.intersection(steps))
        for step in gone:
            (self.path(step) / _MANIFEST).rename(self.path(step) / _PRUNED)
            _sync(self.path(step))
        for step in self._with_file(_PRUNED):
            for entry in self.path(step).iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != _PRUNED:
                    entry.unlink(missing_ok=True)
        return gone

    def drop_states(self, steps: Iterable[int]) -> list[int]:
        """Remove what is needed to train on exactly from versions and keep their weights; returns those that had it.
        The newest keeps it, and the one that was rolled back to. What the disk refuses is left for the next call."""
        gone = []
        for step in sorted((set(self.steps()[:-1]) - {self.served()}).intersection(steps)):
            if (state := self.path(step) / STATE).exists():
                with contextlib.suppress(OSError):
                    (self.path(step) / DROPPED).touch()
                    _sync(self.path(step))
                    state.unlink(missing_ok=True)
                    gone.append(step)
        return gone

    def kept(self) -> set[int]:
        """The versions that retention never touches: the one that serving begins with, and those from which other
        policies were forked."""
        bases = {step for step in [self.served()] if step is not None}
        for folder in self.directory.parent.iterdir() if self.directory.parent.is_dir() else ():
            if folder == self.directory or not folder.is_dir() or not can_name_a_policy(folder.name):
                continue
            other = Checkpoints(folder.parent, folder.name)
            with contextlib.suppress(TrainingError):  # damaged, or pruned just now: who uses that policy gets the error
                for first in other.all_steps()[:1]:
                    name, _, number = other.manifest(first).forked_from.rpartition("@")
                    if name == self.policy and number.isdecimal():
                        bases.add(int(number))
        return bases

    @contextlib.contextmanager
    def only_writer(self) -> Iterator[None]:
        """For as long as this process makes versions of the policy. Raises TrainingError, with its pid, when another
        process does, and when the disk refuses; the system frees a dead one's hold."""
        with contextlib.ExitStack() as locks:
            try:
                self._take_lock(locks)
            except OSError as error:
                raise CheckpointError(
                    f"{self.directory} cannot be written: {error.strerror or error}.",
                    "Free disk space or correct the permissions, then start again.",
                ) from error
            locks.callback(self._room.give_up)
            yield

    def _take_lock(self, locks: contextlib.ExitStack) -> None:
        make_directory(self.directory)
        with contextlib.ExitStack() as opened:
            lock = opened.enter_context((self.directory / TRAINING_LOCK).open("a+"))
            deadline = time.monotonic() + _LOCK_WITHIN_S
            while not acquire(lock.fileno()):
                if time.monotonic() > deadline:
                    lock.seek(0)
                    raise TrainingError(
                        f"{self.policy!r} is being trained already, by process {lock.read().strip() or '?'}.",
                        "Wait for it, or stop it; another policy (--policy) can be trained beside it.",
                    )
                time.sleep(0.02)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            locks.push(opened.pop_all())

    def writer(self) -> int | None:
        """The process that makes versions of the policy now, None when none does."""
        try:
            with (self.directory / TRAINING_LOCK).open() as lock:
                return None if acquire(lock.fileno()) else int(lock.read() or 0)
        except (OSError, ValueError):
            return None

    def _remove_leftovers(self) -> None:
        for entry in self.directory.glob(f".{self.policy}@*.*.*"):
            if not _is_another_writer(int(pid) if (pid := entry.name.split(".")[-2]).isdecimal() else 0):
                shutil.rmtree(entry, ignore_errors=True)
        newest = self.latest() or 0
        for step in set(self._with_file(_HANDED_OVER)) - set(self.all_steps()):
            if step < newest:  # the version after it is served by now
                shutil.rmtree(self.path(step), ignore_errors=True)


def _is_another_writer(pid: int) -> bool:
    """Whether another living process may still be writing under this number."""
    return pid not in (0, os.getpid()) and is_alive(pid)


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

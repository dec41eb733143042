"""The layout of the data directory: `.arttrace` in the working directory unless ARTTRACE_DIR says otherwise.

A directory above that `arttrace init` was run in is taken in place of the working directory, as git does.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from arttrace.system.errors import ArttraceError, TrainingError
from arttrace.system.private_files import make_directory

_CHOOSE = "Give an absolute path: --dir, or ARTTRACE_DIR"
_NAME = ".arttrace"
_PIN = "root"
"""The file by which `arttrace init` marks a data directory."""
LOCAL = "local"
LAST_RUN = "last_run"
TRAINING_LOCK = "train.lock"
_POLICY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def can_name_a_policy(text: str) -> bool:
    """Whether it can be a directory's and a model's name."""
    return _POLICY.fullmatch(text) is not None


def require_policy_name(text: str) -> None:
    """Raise TrainingError, which says the rule, where no policy can have that name."""
    if not can_name_a_policy(text):
        raise TrainingError(
            f"{text!r} cannot name a policy.",
            "Use letters, digits, '.', '_' and '-', at most 100, a letter or digit first; no '/' and no '@'.",
        )


@dataclass(frozen=True, slots=True)
class DataDir:
    """The layout of one data directory; nothing is created by naming a path."""

    root: Path
    url: str | None = None
    """The collector that has the store, where it is none of this machine's."""

    @classmethod
    def resolve(cls, given: str | Path | None = None) -> DataDir:
        """The directory that was given, else `$ARTTRACE_DIR`, else the nearest one at or above the working directory
        that `arttrace init` made, else `./.arttrace`; made absolute. Raises ArttraceError where that cannot be."""
        said = given or os.environ.get("ARTTRACE_DIR")
        try:
            if said:
                return cls(Path(said).expanduser().absolute())
            here = Path.cwd()
        except RuntimeError as error:
            raise ArttraceError(f"{said}: there is no such home directory", f"{_CHOOSE}, without `~`.") from error
        except FileNotFoundError as error:
            raise ArttraceError("the working directory is not there any more", f"{_CHOOSE}.") from error
        pinned = (data for folder in (here, *here.parents) if (data := cls(folder / _NAME)).is_pinned)
        return next(pinned, cls(here / _NAME))

    @property
    def is_pinned(self) -> bool:
        """Whether `arttrace init` made it the data directory of all that runs below."""
        return _exists(self.root / _PIN)

    def above(self) -> Path | None:
        """Where this is a `.arttrace` that does not exist yet: the nearest one in a directory above, if there is one.
        It may be the one that is meant."""
        if self.root.name != _NAME or _exists(self.root):
            return None
        for folder in self.root.parent.parents:
            if _exists(folder / _NAME / "spool") or _exists(folder / _NAME / "store.duckdb"):
                return folder / _NAME
        return None

    @property
    def spool(self) -> Path:
        """Journals written by captured processes, not yet in the store."""
        return self.root / "spool"

    @property
    def outbox(self) -> Path:
        """Journals written by captured processes that ship to a collector, until it has acknowledged them."""
        return self.root / "outbox"

    @property
    def receivers(self) -> Path:
        """One outbox for each receiver beside the store or the collector."""
        return self.root / "receivers"

    @property
    def claude_code(self) -> Path:
        """What each Claude Code that a captured program runs has sent and received, until it is recorded."""
        return self.root / "claude-code"

    @property
    def journal(self) -> Path:
        """The journal of the process that owns the store: everything enters the store through it."""
        return self.root / "journal"

    @property
    def store(self) -> Path:
        """The DuckDB file."""
        return self.root / "store.duckdb"

    @property
    def owner(self) -> Path:
        """A JSON file that says which process owns the store for long, and where it answers for it."""
        return self.root / "owner.json"

    @property
    def retention(self) -> Path:
        """A JSON file in which captured programs store how long to keep their runs, if one of them has that setting."""
        return self.root / "retention.json"

    @property
    def unread_requests(self) -> Path:
        """A JSON file that counts the requests which a collector here refused as a whole."""
        return self.root / "unread_requests.json"

    @property
    def unread_spans(self) -> Path:
        """A JSON file that counts the spans which a collector here refused and whose trace is not known."""
        return self.root / "unread_spans.json"

    @property
    def unread_entries(self) -> Path:
        """A JSON file that counts what of the journals here could not be read."""
        return self.root / "unread_entries.json"

    def last_run(self) -> str | None:
        """What the last `arttrace run` printed at its end; None where it had no room for it."""
        try:
            return (self.root / LAST_RUN).read_text(encoding="utf-8", errors="replace") or None
        except OSError:
            return None

    @property
    def policies(self) -> Path:
        """One directory per policy, and in it one per version, `name@N`."""
        return self.root / "policies"

    @property
    def serving(self) -> Path:
        """A JSON file that says where the gateway of this directory listens, while it runs."""
        return self.root / "serving.json"

    @property
    def serving_lock(self) -> Path:
        """The file on which that gateway holds a lock."""
        return self.root / "serve.lock"

    def training_lock(self, policy: str) -> Path:
        """The file on which whoever makes versions of a policy holds a lock."""
        return self.policies / policy / TRAINING_LOCK


def endpoints(said: str | None = None) -> tuple[str | None, list[str]]:
    """The collector and the further receivers of a list with commas between, by default $ARTTRACE_ENDPOINT's. Where the
    first word is `local` there is no collector."""
    words = [word.strip() for word in (said or os.environ.get("ARTTRACE_ENDPOINT") or "").split(",")]
    first, *others = list(filter(None, words)) or [LOCAL]
    return None if first.lower() == LOCAL else first, others


def pin(data: DataDir) -> None:
    """Make a data directory, private to its user and ignored by git, that is found from every directory below. Raises
    OSError."""
    with suppress(FileNotFoundError):  # said below
        data.root.parent.mkdir(parents=True, exist_ok=True)
    make_directory(data.root)
    (data.root / ".gitignore").write_text("*\n")
    (data.root / _PIN).write_text("The data directory of all that runs below. Made by `arttrace init`.\n")


def beside_another(data: DataDir, above: Path) -> str:
    """What is said before a data directory is made below one that exists."""
    return (
        f"the data directory is {data.root}, which does not exist yet; {above} does. To use that one, run "
        f"`arttrace init` in {above.parent}, or set ARTTRACE_DIR."
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above that this user may not look into
        return False

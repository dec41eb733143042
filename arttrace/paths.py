"""Where things lie: one data directory, `.arttrace` in the working directory unless ARTTRACE_DIR says otherwise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DataDir:
    """The layout of one data directory; nothing is created by naming a path."""

    root: Path

    @classmethod
    def resolve(cls, given: str | Path | None = None) -> DataDir:
        """The directory that was given, else `$ARTTRACE_DIR`, else `./.arttrace`, made absolute."""
        return cls(Path(given or os.environ.get("ARTTRACE_DIR") or ".arttrace").expanduser().absolute())

    @property
    def spool(self) -> Path:
        """Journals written by captured processes, not yet in the store."""
        return self.root / "spool"

    @property
    def outbox(self) -> Path:
        """Journals written by captured processes that ship to a collector, until it has acknowledged them."""
        return self.root / "outbox"

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
    def policies(self) -> Path:
        """One directory per policy, and in it one per version, `name@N`."""
        return self.root / "policies"

    @property
    def serving(self) -> Path:
        """A JSON file that says where the gateway of this directory listens, while it runs."""
        return self.root / "serving.json"

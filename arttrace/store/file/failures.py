"""What DuckDB refused to do with a store, as an error with the remedy that loses the least."""

from __future__ import annotations

import errno
import os
import re
import shlex
from pathlib import Path

import duckdb

from arttrace.records.values.users_text import first_line
from arttrace.system.errors import StoreError, StoreFull

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_DAMAGE = (
    *(duckdb.OutOfMemoryException, duckdb.InterruptException, duckdb.ProgrammingError),
    *(duckdb.ConversionException, duckdb.OutOfRangeException),  # a number that was asked for is beyond its column
)
_damage = re.compile(
    r"\bCorrupt\b|Could not read (?:enough|all) bytes|SerializationException|Failed to deserialize"
).search
_log = re.compile(r'Failure while replaying (?:checkpoint )?WAL file "(.+?)"').search
_at_byte = re.compile(r"at byte position (\d+)").search
_versions = re.compile(r"version number (\d+), but we can only read storage versions between \d+ and (\d+)").search


def is_damage(error: Exception) -> bool:
    """Whether DuckDB met bytes in its files that are not what it wrote, or are missing: that does not pass."""
    of_a_query = (duckdb.ProgrammingError, duckdb.DataError)  # which may quote any word
    return isinstance(error, duckdb.Error) and not isinstance(error, of_a_query) and _damage(str(error)) is not None


def cannot_be(used: str, path: Path, error: duckdb.Error) -> StoreError:
    """What DuckDB refused to do with the store, with the remedy: room for it, a newer DuckDB, or another file."""
    text = str(error)
    said = f"the store {path} cannot be {used}: {first_line(error)}"
    if any(os.strerror(one) in text for one in _NO_ROOM):
        return StoreFull(said, "Free disk space. Nothing is lost: what was not stored is still in the spool.")
    if isinstance(error, _NO_DAMAGE):
        return StoreError(said)
    if any(os.strerror(one) in text for one in _FORBIDDEN):
        return StoreError(
            said,
            f"This user must be allowed to write to it, also to read it: `chmod u+w {shlex.quote(str(path))}` by its "
            "owner. To read one that cannot be written, copy its directory and pass the copy with --dir.",
        )
    if (versions := _versions(text)) and int(versions[1]) > int(versions[2]):
        return StoreError(said, "A newer DuckDB wrote it: `pip install --upgrade duckdb`.")
    if log := _log(text):
        at = _at_byte(text)
        rest = f"`truncate -s {at[1]} {log[1]}` then keeps" if at else "without it the store still has"
        return StoreError(said, f"What was stored last is damaged. Copy {log[1]} away; {rest} all that came before.")
    return StoreError(
        said, "If it is damaged, move it away: `arttrace ls` makes a new one from what is still in the spool."
    )

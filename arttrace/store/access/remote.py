"""RemoteStore: the store of a data directory that another process owns, asked over HTTP; and AnyStore, what both are.

Every operation is idempotent, so one that was cut off by its owner's death is asked again of the next owner, which may
be this process itself.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import httpx
import msgspec

from arttrace.errors import MayPass, StoreError
from arttrace.formats.journal_entry import encode_records
from arttrace.paths import DataDir
from arttrace.records.policy import PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Judgement
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store.access.local import Store
from arttrace.store.access.operations import OPERATIONS
from arttrace.store.file.prune import Pruned
from arttrace.store.rows.summary import TrajectorySummary

MSGPACK, JSON_LINES = "application/msgpack", "application/x-ndjson"

RETRY_S = 30.0
"""For how long one that was cut off is asked again; what it asks takes longer, once somebody answers."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_POST_BYTES = 8 << 20
_TIMEOUT = httpx.Timeout(600.0, connect=5.0)


class Owner(msgspec.Struct, frozen=True):
    """Who owns a store, as `owner.json` says: where it answers, its process and the token to ask with."""

    url: str
    pid: int
    token: str


class _Answering(msgspec.Struct, frozen=True):
    directory: str


class Failure(msgspec.Struct, frozen=True):
    """The body of the API's errors."""

    message: str
    hint: str | None = None


class OwnerGone(StoreError, MayPass):
    """The process that owned the store does not answer any more."""


class AnyStore(Protocol):
    """What `Store` and `RemoteStore` have in common; see there for what each method does."""

    @property
    def data(self) -> DataDir: ...
    def __enter__(self) -> AnyStore: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def close(self) -> None: ...
    def append(self, records: Iterable[Record]) -> None: ...
    def ingest_spool(self) -> int: ...
    def summaries(
        self,
        *,
        limit: int | None = None,
        group: str | None = None,
        entry: str | None = None,
        since_ns: int | None = None,
        unconsumed_by: str | None = None,
        method: str | None = None,
        complete_only: bool = False,
    ) -> list[TrajectorySummary]: ...
    def trajectory(self, id_or_prefix: str) -> Trajectory: ...
    def trajectories(
        self,
        *,
        group: str | None = None,
        groups: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        entry: str | None = None,
        unconsumed_by: str | None = None,
        method: str | None = None,
        complete_only: bool = False,
    ) -> list[Trajectory]: ...
    def spans(self, trajectory_id: str) -> list[SpanRow]: ...
    def spans_of_traces(self, traces: Sequence[str]) -> list[SpanRow]: ...
    def judgement(self, key: str) -> Judgement | None: ...
    def policy_steps(self, policy: str) -> list[PolicyStep]: ...
    def sql(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]: ...
    def prune(self, *, before_ns: int | None = None, max_bytes: int | None = None, dry_run: bool = False) -> Pruned: ...


class Asking:
    """Asks one owner. Threads may share it."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        headers = {"accept": MSGPACK} | ({"authorization": f"Bearer {token}"} if token else {})
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=_TIMEOUT, trust_env=False, verify=url.startswith("https:")
        )

    def ask(self, name: str, arguments: dict[str, Any]) -> Any:
        """The result of an operation. Raises OwnerGone when nobody answers, StoreError when it was refused."""
        operation = OPERATIONS[name]
        body = msgspec.msgpack.encode(operation.arguments(**arguments))
        return operation.decode(self._post(f"/api/{name}", body, MSGPACK))

    def append(self, records: Sequence[Record]) -> None:
        """Returns when the records are in the owner's store."""
        for body in _chunks(records):
            self._post("/api/records", body, JSON_LINES)

    def directory(self) -> str:
        """The data directory of the one that answers. Raises OwnerGone when it does not answer as an owner does."""
        try:
            return msgspec.msgpack.decode(self._send("GET", "/api/owner"), type=_Answering).directory
        except msgspec.DecodeError as error:
            raise OwnerGone(f"what answers at {self.url} is no owner of a store") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _post(self, path: str, body: bytes, kind: str) -> bytes:
        return self._send("POST", path, content=body, headers={"content-type": kind})

    def _send(self, method: str, path: str, **content: Any) -> bytes:
        try:
            answer = self._client.request(method, path, **content)
        except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
            raise OwnerGone(f"the owner of the store at {self.url} does not answer: {error}") from error
        if answer.status_code == httpx.codes.OK:
            return answer.content
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise StoreError(
                f"the collector at {self.url} asks for a key",
                "Set ARTTRACE_API_KEY to its key, or pass the data directory of a collector on this machine with "
                "--dir.",
            )
        try:
            failure = msgspec.json.decode(answer.content, type=Failure)
        except msgspec.DecodeError:
            failure = Failure(f"{self.url} answered {answer.status_code} to {path}")
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:  # it ends: what is under way is broken off
            raise OwnerGone(failure.message, failure.hint)
        raise StoreError(failure.message, failure.hint)


class RemoteStore:
    """A store that another process owns, with the methods of `Store`; threads may share it.

    When the owner ends, `reopen` finds the next one, or opens the store here; None: the owner is elsewhere, where it is
    asked again until it answers.
    """

    def __init__(self, data: DataDir, asking: Asking, reopen: Callable[[], Asking | Store] | None) -> None:
        self.data = data
        self._reopen = reopen
        self._backend: Asking | Store = asking

    def __enter__(self) -> RemoteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the owner goes on."""
        self._backend.close()

    def append(self, records: Iterable[Record]) -> None:
        """Stores records: durable in the owner's journal first, then in the tables."""
        given = list(records)
        self._retried(lambda backend: backend.append(given))

    def ingest_spool(self) -> int:
        """Lets the owner take in what captured processes wrote meanwhile. Returns how many records were new."""
        return int(self._call("ingest_spool"))

    def summaries(
        self,
        *,
        limit: int | None = None,
        group: str | None = None,
        entry: str | None = None,
        since_ns: int | None = None,
        unconsumed_by: str | None = None,
        method: str | None = None,
        complete_only: bool = False,
    ) -> list[TrajectorySummary]:
        """As Store.summaries."""
        found: list[TrajectorySummary] = self._call(
            "summaries",
            limit=limit,
            group=group,
            entry=entry,
            since_ns=since_ns,
            unconsumed_by=unconsumed_by,
            method=method,
            complete_only=complete_only,
        )
        return found

    def trajectory(self, id_or_prefix: str) -> Trajectory:
        """As Store.trajectory."""
        found: Trajectory = self._call("trajectory", id_or_prefix=id_or_prefix)
        return found

    def trajectories(
        self,
        *,
        group: str | None = None,
        groups: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        entry: str | None = None,
        unconsumed_by: str | None = None,
        method: str | None = None,
        complete_only: bool = False,
    ) -> list[Trajectory]:
        """As Store.trajectories."""
        found: list[Trajectory] = self._call(
            "trajectories",
            group=group,
            groups=groups,
            ids=ids,
            entry=entry,
            unconsumed_by=unconsumed_by,
            method=method,
            complete_only=complete_only,
        )
        return found

    def spans(self, trajectory_id: str) -> list[SpanRow]:
        """As Store.spans."""
        found: list[SpanRow] = self._call("spans", trajectory_id=trajectory_id)
        return found

    def spans_of_traces(self, traces: Sequence[str]) -> list[SpanRow]:
        """As Store.spans_of_traces."""
        found: list[SpanRow] = self._call("spans_of_traces", traces=traces)
        return found

    def judgement(self, key: str) -> Judgement | None:
        """As Store.judgement."""
        found: Judgement | None = self._call("judgement", key=key)
        return found

    def policy_steps(self, policy: str) -> list[PolicyStep]:
        """As Store.policy_steps."""
        found: list[PolicyStep] = self._call("policy_steps", policy=policy)
        return found

    def sql(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """As Store.sql."""
        found: tuple[list[str], list[tuple[Any, ...]]] = self._call("sql", query=query)
        return found

    def prune(self, *, before_ns: int | None = None, max_bytes: int | None = None, dry_run: bool = False) -> Pruned:
        """As Store.prune."""
        done: Pruned = self._call("prune", before_ns=before_ns, max_bytes=max_bytes, dry_run=dry_run)
        return done

    def _call(self, name: str, **arguments: Any) -> Any:
        def run(backend: Asking | Store) -> Any:
            return backend.ask(name, arguments) if isinstance(backend, Asking) else getattr(backend, name)(**arguments)

        return self._retried(run)

    def _retried(self, run: Callable[[Asking | Store], Any]) -> Any:
        deadline, pause = time.monotonic() + RETRY_S, _PAUSE_S
        while True:
            try:
                return run(self._backend)
            except OwnerGone:
                if time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            if self._reopen is not None:
                self._backend.close()
                self._backend = self._reopen()


def read_owner(data: DataDir) -> Owner | None:
    """What `owner.json` says, if its process lives."""
    try:
        owner = msgspec.json.decode(data.owner.read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return None
    return owner if _alive(owner.pid) else None


def write_owner(data: DataDir, owner: Owner) -> None:
    """Puts `owner.json` in place, readable by this user only."""
    fd, path = tempfile.mkstemp(dir=data.root, prefix=".owner-")  # made with mode 0600
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(owner))
    Path(path).replace(data.owner)


def remove_owner(data: DataDir, owner: Owner) -> None:
    """Removes `owner.json`, unless it is another's by now."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        if msgspec.json.decode(data.owner.read_bytes(), type=Owner) == owner:
            data.owner.unlink()


def _alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # it is asked all the same
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _chunks(records: Sequence[Record]) -> Iterator[bytes]:
    body = bytearray()
    for record in records:
        body += encode_records([record])
        if len(body) >= _POST_BYTES:
            yield bytes(body)
            body.clear()
    if body:
        yield bytes(body)

"""The HTTP client of a store's owner: one request per operation, its errors as StoreError."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from arttrace.formats.journal_entry import encode_records
from arttrace.records.record import Record
from arttrace.records.values.nesting import UNREADABLE
from arttrace.store.access.operations import OPERATIONS
from arttrace.store.file import cancellation
from arttrace.store.file.cancellation import Stopped
from arttrace.system.addresses import verified, why_never_asked, without_login
from arttrace.system.errors import MayPass, StoreError
from arttrace.system.processes import signals_after_imports

if TYPE_CHECKING:
    import httpx

MSGPACK, JSON_LINES = "application/msgpack", "application/x-ndjson"

_POST_BYTES = 8 << 20
_ANSWER_S, _PRUNE_S, _CONNECT_S = 600.0, 86_400.0, 5.0


def timeout_for(path: str) -> httpx.Timeout:
    """How long a request waits for its answer. Pruning writes the whole store anew."""
    import httpx

    return httpx.Timeout(_PRUNE_S if path == "/api/prune" else _ANSWER_S, connect=_CONNECT_S)


_ALIKE = (
    "At {url} answers arttrace {version}, as this is: one of the two runs since before an upgrade, or is another "
    "build. Start both again."
)


class _OwnerReply(msgspec.Struct, frozen=True):
    directory: str
    version: str = ""


class _AppendReply(msgspec.Struct, frozen=True):
    records: int
    new: int | None = None  # an owner of an earlier version does not say


class Failure(msgspec.Struct, frozen=True):
    """The body of the API's errors."""

    message: str
    hint: str | None = None
    reading: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """How many runs of how many have been read again, where the store answers when that is done."""


class OwnerGone(StoreError, MayPass):
    """The process that owned the store no longer answers; `why` is what came of asking it."""

    def __init__(self, message: str, hint: str | None = None, *, why: str = "") -> None:
        super().__init__(message, hint)
        self.why = why or message


class OwnerBusy(OwnerGone):
    """Somebody answers in its place: it opens the store, or ends. `reading` says how many of how many runs it has read
    again."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, failure.hint)
        self.reading = failure.reading or None


class NotUnderstood(StoreError):
    """The owner has no such operation, or not with these arguments."""


class OwnerClient:
    """A client of one owner. Threads may share it. Raises StoreError where nobody can be asked so."""

    def __init__(self, url: str, token: str | None) -> None:
        if why := why_never_asked(url, token):
            raise StoreError(
                f"the collector cannot be asked: {why}", "Correct --url, ARTTRACE_ENDPOINT or ARTTRACE_API_KEY."
            )
        with signals_after_imports(takes_long=False):
            import httpx  # most commands ask no owner, and it is a quarter of what they import

        self.url = without_login(url)  # as errors name it
        headers = {"accept": MSGPACK} | ({"authorization": f"Bearer {token}"} if token else {})
        self._has_key = bool(token)
        self._new_client = partial(
            httpx.Client,
            base_url=url,
            headers=headers,
            trust_env=False,
            verify=verified(url),
        )
        self._client = self._new_client()

    def request(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of an operation. Raises OwnerGone when nobody answers, StoreError when it was refused."""
        operation = OPERATIONS[name]
        body = msgspec.msgpack.encode(operation.arguments(**arguments))
        try:
            return operation.decode(self._post(f"/api/{name}", body, MSGPACK))
        except UNREADABLE as error:
            raise self._unreadable(name, error) from error
        except StoreError as error:
            if isinstance(error, NotUnderstood):
                raise NotUnderstood(error.message, self._with_versions(error.hint)) from error
            if name == "sql" and not isinstance(error, OwnerGone | Stopped):  # mostly a fault of the query
                raise type(error)(error.message, self._with_versions(error.hint, if_equal="")) from error
            raise

    def _unreadable(self, name: str, error: Exception) -> StoreError:
        return StoreError(f"what {self.url} answers to {name} cannot be read: {error}", self._with_versions(None))

    def _with_versions(self, hint: str | None, *, if_equal: str = _ALIKE) -> str | None:
        """The hint, with the owner's version and which side to upgrade; with `if_equal` where both have one version."""
        own = version("arttrace")
        try:
            owners = self._owner().version
        except StoreError:
            return " ".join(filter(None, (hint, f"Is {self.url} the address of a collector, and no more than that?")))
        if owners == own:
            said = if_equal.format(url=self.url, version=own)
        else:
            which = f"arttrace {owners}" if owners else "an earlier version of arttrace"
            remedy = "upgrade arttrace here" if _is_newer(owners, own) else "upgrade arttrace there and start it again"
            said = f"At {self.url} answers {which}, this is {own}: if that is why, {remedy}."
        return " ".join(filter(None, (hint, said))) or None

    def append(self, records: Sequence[Record]) -> int:
        """Return once the records are in the owner's store: how many were new to it."""
        answers = (self._post("/api/records", body, JSON_LINES) for body in _chunks(records))
        try:
            replies = [msgspec.msgpack.decode(answer, type=_AppendReply) for answer in answers]
        except UNREADABLE as error:
            raise self._unreadable("append", error) from error
        return sum(reply.records if reply.new is None else reply.new for reply in replies)

    def directory(self) -> str:
        """The owner's data directory. Raises OwnerGone when it does not answer as an owner does."""
        return self._owner().directory

    def _owner(self) -> _OwnerReply:
        try:
            return msgspec.msgpack.decode(self._send("GET", "/api/owner"), type=_OwnerReply)
        except UNREADABLE as error:
            raise OwnerGone(f"the server at {self.url} is not the owner of a store") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _post(self, path: str, body: bytes, kind: str) -> bytes:
        return self._send("POST", path, content=body, headers={"content-type": kind})

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tuple[httpx.Client, dict[str, Any]]]:
        """A client, and extensions of its request: with a connection of its own, which a current Stop shuts."""
        if not cancellation.is_watched():
            yield self._client, {}
            return
        connection = _Connection()
        with self._new_client() as client, cancellation.stoppable(connection):
            yield client, {"trace": connection.trace}

    def _send(self, method: str, path: str, **content: Any) -> bytes:
        import httpx

        try:
            # httpx's response is in a cycle: what it keeps of its content stays in memory until cycles are looked for.
            with (
                self._connected() as (client, extensions),
                client.stream(method, path, timeout=timeout_for(path), extensions=extensions, **content) as answer,
            ):
                said = b"".join(answer.iter_bytes())
        except (httpx.RequestError, httpx.InvalidURL, OSError) as error:
            cancellation.check()
            why = str(error) or type(error).__name__
            raise OwnerGone(f"the owner of the store at {self.url} does not answer: {why}", why=why) from error
        except RuntimeError as error:
            if not self._client.is_closed:
                raise
            raise OwnerGone(f"the connection to the owner of the store at {self.url} was closed") from error
        if answer.status_code == httpx.codes.OK:
            return said
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            what = "does not take the key of ARTTRACE_API_KEY" if self._has_key else "asks for a key"
            raise StoreError(
                f"the collector at {self.url} {what}",
                "Set ARTTRACE_API_KEY to its key. One that was started without a key is asked by its data directory, "
                "--dir, on its own machine only: start it with --api-key-file to ask it from elsewhere.",
            )
        gone: OwnerGone
        try:
            failure = msgspec.json.decode(said, type=Failure)
            gone = OwnerBusy(failure)
        except UNREADABLE:
            failure = Failure(f"{self.url} answered {answer.status_code} to {path}")
            gone = OwnerGone(failure.message, why=f"in its place comes {answer.status_code}")
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:  # it ends: what is under way is broken off
            raise gone
        understood = answer.status_code not in (httpx.codes.BAD_REQUEST, httpx.codes.NOT_FOUND)
        raise (StoreError if understood else NotUnderstood)(failure.message, failure.hint)


def _is_newer(one: str, other: str) -> bool:
    """Whether a version is above another; False for what is none."""
    from packaging.version import InvalidVersion, Version  # hardly ever asked

    try:
        return Version(one) > Version(other)
    except InvalidVersion:
        return False


class _Connection:
    """The one connection of a client, as httpx tells of it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """An extension of requests."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")

    def interrupt(self) -> None:
        """Whoever reads from it is told that it is at its end."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_RDWR)


def _chunks(records: Sequence[Record]) -> Iterator[bytes]:
    body = bytearray()
    for record in records:
        body += encode_records([record])
        if len(body) >= _POST_BYTES:
            yield bytes(body)
            body.clear()
    if body:
        yield bytes(body)

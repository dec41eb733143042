"""open_store: the store of a data directory, whoever owns it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from arttrace.store.access.any_store import AnyStore
from arttrace.store.access.client import OwnerBusy, OwnerClient, OwnerGone
from arttrace.store.access.local import Store
from arttrace.store.access.owner_file import read_owner
from arttrace.store.access.remote import RemoteStore, asked_again
from arttrace.store.file.cancellation import Stopped
from arttrace.store.file.read_so_far import last_opening
from arttrace.store.file.retention import keep_to_wish
from arttrace.system.errors import StoreError, StoreInUse
from arttrace.system.paths import DataDir, endpoints

PATIENCE_S = 10.0
"""How long to wait for whoever has the store open and neither answers nor lets go of it."""

_PAUSE_S = 0.05


def open_store(
    data: DataDir, *, create: bool = False, on_taken_over: Callable[[Store], object] | None = None
) -> AnyStore:
    """Open the store of a data directory: its file if no process has it open, else its owner over HTTP.

    What captured processes left in the spool is ingested. If ARTTRACE_ENDPOINT is set, spans of this process's own data
    directory are sent to that collector, so the collector is opened; a collector that `data` names is opened in any
    case. Its key is ARTTRACE_API_KEY.

    Args:
        data: The data directory: `DataDir.resolve()` finds the one of the environment.
        create: Create the store if there is none.
        on_taken_over: Called with the store if its owner ends and this process opens the file instead.

    Raises:
        StoreError: As Store.open does.
        StoreInUse: The process that has the file open does not answer.
    """
    if endpoint := elsewhere(data):
        client = OwnerClient(endpoint.rstrip("/"), os.environ.get("ARTTRACE_API_KEY"))
        _take_in(client, "--url" if data.url else "ARTTRACE_ENDPOINT")
        return RemoteStore(data, client, None)
    found = _find(data, create)
    if isinstance(found, Store):
        if on_taken_over is None:  # who holds it for long does this once it answers the others
            try:
                keep_to_wish(found, data)
            except BaseException:
                found.close()
                raise
        return found

    def next_owner() -> OwnerClient | Store:
        found = _find(data, True)
        if isinstance(found, Store) and on_taken_over is not None:
            on_taken_over(found)
        return found

    store = RemoteStore(data, found, next_owner)
    store.ingest_spool()
    return store


def elsewhere(data: DataDir) -> str | None:
    """The address of the collector that is opened in place of a data directory, None where the directory is."""
    endpoint, _ = endpoints()
    if data.url or (endpoint and data == DataDir.resolve() and read_owner(data) is None):
        return data.url or endpoint
    return None


def _take_in(client: OwnerClient, said_by: str) -> None:
    """If nobody answers at first, the address is more likely wrong than its owner restarting: it is not tried again. A
    collector that answers and whose store is being opened is waited for."""
    try:
        asked_again(lambda: client.request("ingest_spool", {}), after=OwnerBusy)
    except OwnerBusy as error:
        client.close()
        raise StoreError(
            f"the collector at {client.url} ({said_by}) answers, but its store does not: {error.message}",
            "Its log and its /ready say more.",
        ) from error
    except OwnerGone as error:
        client.close()
        remedy = f"Start it, or leave {said_by} out to read the data directory on this machine."
        if "CERTIFICATE_VERIFY_FAILED" in error.why:
            remedy = "If an authority of your own signs its certificate, name the file with that one's: SSL_CERT_FILE."
        what = f"the collector at {client.url} ({said_by}) does not answer: {error.why}"
        raise StoreError(what, remedy) from error
    except BaseException:
        client.close()
        raise


def _find(data: DataDir, create: bool) -> OwnerClient | Store:
    """The file or its owner. Two processes that start at the same moment, or an owner that is about to answer or has
    just died, are handled by looking again; those who hold the file for a moment, in this process or others, by waiting
    for as long as one after the other gets it."""
    deadline: float | None = None  # from the first time that the file is in use: Store.open waits for its opening
    opened = 0
    while True:
        owner = _owner(data)
        if owner is not None:
            return owner
        try:
            return Store.open(data, create=create)
        except StoreInUse:
            now, before = time.monotonic(), opened
            opened = last_opening(data.store)
            deadline = now + PATIENCE_S if deadline is None or opened != before else deadline
            if now >= deadline:
                raise
        time.sleep(_PAUSE_S)


def _owner(data: DataDir) -> OwnerClient | None:
    """The one that answers as `owner.json` says, if it owns this very directory."""
    owner = read_owner(data)
    if owner is None:
        return None
    client = OwnerClient(owner.url, owner.token)
    try:
        if os.path.realpath(client.directory()) == os.path.realpath(data.root):
            return client
    except Stopped:
        client.close()
        raise
    except StoreError:  # it died, and another process has its pid or its port
        pass
    client.close()
    return None

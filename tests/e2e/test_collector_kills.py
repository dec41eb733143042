"""kill -9 of the collector or its child at any moment, under load, with doubled and shuffled delivery: what was acked
is in the store once, and the next start needs no hand."""

from __future__ import annotations

import http.client
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from otlp_requests import PROTOBUF, chat_request

from arttrace.store import open_store
from arttrace.store.access.owner_file import read_owner
from arttrace.system.paths import DataDir

pytestmark = pytest.mark.e2e

Id = tuple[bytes, bytes]


class Sender(threading.Thread):
    """Sends batches to the newest collector until it is asked to stop; keeps what was acked."""

    def __init__(self, seed: int, where: list[int]) -> None:
        super().__init__(daemon=True)
        self.acked: set[Id] = set()
        self.strange: set[int] = set()
        self.stop = threading.Event()
        self._random = random.Random(seed)
        self._where = where

    def run(self) -> None:
        late: list[Id] = []  # spans of earlier batches, for shuffled and doubled delivery
        while not self.stop.is_set():
            fresh = [(self._random.randbytes(16), self._random.randbytes(8)) for _ in range(20)]
            batch = fresh + self._random.sample(late, min(len(late), 5))
            self._random.shuffle(batch)
            late = (late + fresh)[-200:]
            while not self.stop.is_set() and not self._send(batch):
                time.sleep(0.02)  # as an exporter does: the same batch again

    def _send(self, batch: list[Id]) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._where[-1], timeout=10)
        try:
            connection.request("POST", "/v1/traces", chat_request(batch, padding=400), {"content-type": PROTOBUF})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if answer.status == 200:
            self.acked.update(batch)
        elif answer.status != 503:
            self.strange.add(answer.status)
        return answer.status == 200


@contextmanager
def collector(data: DataDir) -> Iterator[tuple[subprocess.Popen[str], int]]:
    program = "from arttrace.commands import main; main()"
    command = [sys.executable, "-c", program, "collect", "--port", "0", "--dir", str(data.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline().split()[2].rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def kill_child(data: DataDir) -> None:
    owner = read_owner(data)
    if owner is not None:
        os.kill(owner.pid, signal.SIGKILL)


def kill_loop(data: DataDir, rounds: int, seed: int) -> None:
    moments = random.Random(seed)
    where: list[int] = []
    senders = [Sender(seed * 10 + n, where) for n in range(2)]
    for number in range(rounds):
        with collector(data) as (process, port):
            where.append(port)
            if number == 0:
                for sender in senders:
                    sender.start()
            time.sleep(moments.uniform(0.0, 2.0))  # from before it owns the store until well under way
            if number % 3 == 1:
                kill_child(data)
                time.sleep(moments.uniform(0.0, 0.5))
            process.kill()
    with collector(data) as (_, port):  # the last one ends in order
        where.append(port)
        before = sum(len(sender.acked) for sender in senders)
        deadline = time.monotonic() + 120
        while sum(len(sender.acked) for sender in senders) <= before:
            assert time.monotonic() < deadline, "nothing is acked any more"
            time.sleep(0.02)
        for sender in senders:
            sender.stop.set()
            sender.join(30)
    acked = set().union(*(sender.acked for sender in senders))
    assert not set().union(*(sender.strange for sender in senders))
    with open_store(data) as store:
        _, rows = store.sql("SELECT trace_id, span_id FROM spans")
    stored = {(bytes.fromhex(trace_id), bytes.fromhex(span_id)) for trace_id, span_id in rows}
    assert len(rows) == len(stored), "a span is stored more than once"
    assert acked
    assert acked <= stored, f"{len(acked - stored)} of {len(acked)} acked spans are lost"


def test_nothing_acked_is_lost_or_doubled(tmp_path: Path) -> None:
    kill_loop(DataDir(tmp_path), rounds=3, seed=1)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_nothing_acked_is_lost_or_doubled_in_many_rounds(tmp_path: Path, seed: int) -> None:
    kill_loop(DataDir(tmp_path), rounds=10, seed=100 + seed)

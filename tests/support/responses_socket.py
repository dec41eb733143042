"""A stand-in for OpenAI's server on 127.0.0.1 that answers the Responses API by WebSocket, by a script.

The script is given each message that comes and yields what is sent back; None closes the connection.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from scripted_server import Reply, response_events
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

Event = dict[str, Any]
Script = Callable[[Event], Iterator[Event | None]]


@dataclass
class ResponsesSocket:
    """The server's side of a test: `url` for clients of HTTP, and what was `sent`."""

    script: Script
    url: str = ""
    sent: list[Event] = field(default_factory=list)

    def handle(self, connection: ServerConnection) -> None:
        """Answer one connection."""
        try:
            for message in connection:
                self.sent.append(json.loads(message))
                for event in self.script(self.sent[-1]):
                    if event is None:
                        return
                    connection.send(json.dumps(event))
        except ConnectionClosed:
            pass


def answering(reply: Callable[[Event], Reply]) -> Script:
    """A script that answers each request by a response of its own id, from resp_1 on."""
    numbers = itertools.count(1)

    def script(message: Event) -> Iterator[Event | None]:
        if message["type"] == "response.create":
            lane = {"stream_id": message["stream_id"]} if "stream_id" in message else {}
            for event in response_events(message, reply(message), f"resp_{next(numbers)}"):
                yield {**event, **lane}

    return script


@contextmanager
def serve_socket(script: Script) -> Iterator[ResponsesSocket]:
    """A running server, for the length of a `with` block."""
    state = ResponsesSocket(script)
    with serve(state.handle, "127.0.0.1", 0) as server:
        state.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield state
        server.shutdown()
        thread.join()

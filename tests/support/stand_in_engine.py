"""A stand-in for vLLM: the part of its HTTP that the gateway uses, over real sockets, misbehaving on order."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Request = dict[str, Any]


class StandInEngine:
    """One engine on a free port, or on the given one. Its log-probabilities depend on the bytes of the adapter.

    `processed` makes its log-probabilities those of the distribution that it samples from.
    `drop` is how many of the next generations it hangs up on before answering; `held` makes generations wait until
    `release` is set; `break_stream` ends a stream after its first chunk, an `endless` one never ends; `answer_bytes` is
    how large a whole answer is; `deaf` makes it ignore adapters' weights. `scripted` are the status, content type and
    body of the next generations' answers.

    With `can_sleep` it has vLLM's /sleep, /wake_up and /is_sleeping; asleep it lets generations wait, as vLLM does, and
    counts them in `asked_asleep`. `fail_to_wake` is how many of the next wakings it refuses, and it `forgets` adapters'
    weights in its sleep while it goes on listing them.
    """

    def __init__(self, base_model: str = "base", port: int = 0) -> None:
        self.base_model = base_model
        self._port = port
        self.adapters: dict[str, str] = {}
        self.generations: list[Request] = []
        self.log: list[tuple[str, str]] = []
        self.processed = False
        self.drop = 0
        self.scripted: list[tuple[int, str, bytes]] = []
        self.deaf = False
        self.break_stream = False
        self.endless = False
        self.answer_bytes = 0
        self.can_sleep = False
        self.asleep = False
        self.asked_asleep = 0
        self.fail_to_wake = 0
        self.forgets = False
        self._awake = asyncio.Event()
        self._awake.set()
        self.held = False
        self.release = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.connections = 0
        self.url = ""
        self._weights: dict[str, bytes] = {}
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> StandInEngine:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def grow_cold(self) -> None:
        """From now on it samples nothing, as one that compiles at its first requests. From any thread."""
        self._server.get_loop().call_soon_threadsafe(self._awake.clear)

    def grow_warm(self) -> None:
        """It samples what it was asked for since. From any thread."""
        self._server.get_loop().call_soon_threadsafe(self._awake.set)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                _method, path, _ = head.split(b" ", 2)
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-len")
                    ),
                    0,
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                if not await self._answer(path.decode(), body, reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self, path: str, body: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        routes: dict[str, Callable[[Request], tuple[int, Any]]] = {
            "/health": lambda _: (200, "ok"),
            "/v1/models": lambda _: (200, self._models()),
            "/v1/load_lora_adapter": self._load,
            "/v1/unload_lora_adapter": self._unload,
        }
        if self.can_sleep:
            routes |= {"/sleep?level=1": self._sleep, "/wake_up": self._wake_up, "/is_sleeping": self._is_sleeping}
        elif path == "/is_sleeping":
            routes[path] = lambda _: (404, {"detail": "Not Found"})
        if path in routes:
            _reply(writer, *routes[path](body))
        elif body.get("max_tokens") == 1 and "prompt" in body:
            await self._until_awake()
            _reply(writer, 200, self._probe(body))
        else:
            self.generations.append(body)
            await self._until_awake()
            if self.drop:
                self.drop -= 1
                return False
            if self.scripted:
                _send(writer, *self.scripted.pop(0))
                await writer.drain()
                return True
            if body.get("stream"):
                return await self._stream(body, writer)
            if self.held:
                gone = asyncio.create_task(reader.read(1))
                released = asyncio.create_task(self.release.wait())
                await asyncio.wait((gone, released), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    self.hung_up.set()
                    released.cancel()
                    return False
                gone.cancel()
                await asyncio.wait((gone,))
            if body["model"] != self.base_model and body["model"] not in self.adapters:
                _reply(writer, 404, {"error": {"message": "unloaded while it was needed"}})
            else:
                _reply(writer, 200, {"model": body["model"], "choices": []} | self._padding())
        await writer.drain()
        return True

    async def _stream(self, body: Request, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        _chunk(writer, b'data: {"n": 1}\n\n')
        await writer.drain()
        if self.break_stream:
            return False
        try:
            while self.endless:
                _chunk(writer, b"data: {}\n\n" * 1000)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            self.hung_up.set()
            raise
        await self.release.wait()
        _chunk(writer, b"data: [DONE]\n\n")
        _chunk(writer, b"")
        await writer.drain()
        return True

    async def _until_awake(self) -> None:
        self.asked_asleep += self.asleep
        await self._awake.wait()

    def _sleep(self, _: Request) -> tuple[int, Any]:
        self.log.append(("sleep", "1"))
        self.asleep = True
        self._awake.clear()
        return 200, {"status": "sleeping", "level": 1}

    def _wake_up(self, _: Request) -> tuple[int, Any]:
        self.log.append(("wake", ""))
        if self.fail_to_wake:
            self.fail_to_wake -= 1
            return 500, {"error": {"message": "CUDA Error: out of memory"}}
        if self.forgets:
            self._weights.clear()
        self.asleep = False
        self._awake.set()
        return 200, {"status": "awake", "tags": None}

    def _is_sleeping(self, _: Request) -> tuple[int, Any]:
        return 200, {"is_sleeping": self.asleep}

    def _padding(self) -> Request:
        return {"padding": "x" * self.answer_bytes} if self.answer_bytes else {}

    def _models(self) -> Any:
        return {
            "data": [{"id": self.base_model, "root": "/base"}]
            + [{"id": n, "root": p} for n, p in self.adapters.items()]
        }

    def _load(self, body: Request) -> tuple[int, Any]:
        name, path = body["lora_name"], body["lora_path"]
        if name in self.adapters:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        self.log.append(("load", name))
        weights = (Path(path) / "adapter_model.safetensors").read_bytes()
        if b"refuse me" in weights:
            return 400, {"error": {"message": "LoRA rank 64 is greater than max_lora_rank 32."}}
        self.adapters[name] = path
        self._weights[name] = weights[weights.index(b"}}") + 2 :]
        return 200, "Success"

    def _unload(self, body: Request) -> tuple[int, Any]:
        self.log.append(("unload", body["lora_name"]))
        if self.adapters.pop(body["lora_name"], None) is None:
            return 404, {"error": {"message": f"The lora adapter '{body['lora_name']}' cannot be found."}}
        return 200, "Success"

    def _probe(self, body: Request) -> Any:
        weights = b"" if self.deaf else self._weights.get(body["model"], b"")
        shift = int.from_bytes(hashlib.sha256(weights).digest()[:4]) / 2**32 if weights.strip(b"\0") else 0.0
        forced = self.processed and "allowed_token_ids" in body
        logprobs = {"token_logprobs": [0.0 if forced else -1.0 - shift]}
        return {"choices": [{"index": index, "logprobs": logprobs} for index in range(len(body["prompt"]))]}


@contextlib.contextmanager
def engine_in_a_thread(base_model: str = "base", port: int = 0) -> Iterator[StandInEngine]:
    """The stand-in engine on a loop of its own, for tests that are not asynchronous."""
    loop = asyncio.new_event_loop()
    engine = StandInEngine(base_model, port)
    loop.run_until_complete(engine.__aenter__())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield engine
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(engine.__aexit__())
        loop.close()


def write_adapter(directory: Path, values: bytes) -> Path:
    """An adapter directory whose only tensor holds `values` (padded to whole floats); all zero changes nothing."""
    directory.mkdir(parents=True)
    data = values + b"\0" * (-len(values) % 4)
    entry = {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "model.layers.0.q_proj.lora_B.weight": entry}).encode()
    weights = len(header).to_bytes(8, "little") + header + data
    (directory / "adapter_model.safetensors").write_bytes(weights)
    (directory / "adapter_config.json").write_text('{"r": 8}')
    return directory


def _reply(writer: asyncio.StreamWriter, status: int, answer: Any) -> None:
    content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
    kind = "text/plain" if isinstance(answer, str) else "application/json"
    _send(writer, status, kind, content)


def _send(writer: asyncio.StreamWriter, status: int, kind: str, content: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

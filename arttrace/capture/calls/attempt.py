"""One HTTP request of a model call and what came back, as bytes: decoded later."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from arttrace.capture.base.settings import MAX_BODY_BYTES
from arttrace.records import semconv
from arttrace.wire import Ending, Exchange
from arttrace.wire.exchange import KEPT_RESPONSE_HEADERS, picked

_NO_HEADERS: Mapping[str, str] = {}
_END_MARK = re.compile(rb"[\r\n]data: ?\[DONE\](?:\r\n\r\n|\n\n|\r\r)")
_LONGEST_MARK = 17


class Attempt:
    """One HTTP request of a call and what came back."""

    __slots__ = (
        "_may_end", "_seen", "body", "body_cut", "body_size", "body_undone", "ending", "error", "failed",
        "first_chunk_ns", "headers", "is_done", "moved", "request", "request_headers", "request_unread", "status",
        "streaming", "url",
    )  # fmt: skip

    def __init__(self, request: bytes | None = b"", url: Any = "", headers: Mapping[str, str] | None = None) -> None:
        self.request = request or b""
        self.request_unread = request is None  # it is a stream, which goes by unread
        self.url = url  # of the client's own type: text is made of it later
        self.request_headers = headers
        self.status: int | None = None
        self.headers = _NO_HEADERS
        self.body: list[bytes] = []
        self.body_size = 0
        self.body_cut = False
        self.body_undone = False
        self.streaming = False
        self.is_done = False
        """Whether OpenAI's end mark of a stream was read: its client hands on nothing that breaks off later."""
        self._may_end = False
        self._seen = b"\n"  # a mark may come in pieces
        self.first_chunk_ns: int | None = None
        self.ending: Ending | None = None
        self.error: BaseException | None = None
        self.failed: tuple[int, dict[str, Any]] | None = None
        self.moved: Any = None  # the call that it is of now, where that is another one than sent it

    def may_end_by_mark(self) -> None:
        """The answer is a stream of an API that ends by OpenAI's mark, an event of "[DONE]"."""
        self._may_end = True

    def chunk(self, data: bytes) -> bool:
        """Bytes of the body, as the transport gave them. Returns whether the end mark came with them: what comes behind
        it is no part of the answer, and some clients neither read on nor close anything."""
        if self.is_done:
            return False
        if self.streaming and self.first_chunk_ns is None:
            self.first_chunk_ns = time.time_ns()
        if self._may_end:
            seen = self._seen + data
            self.is_done = b"[DONE]" in seen and _END_MARK.search(seen) is not None
            self._seen = seen[-_LONGEST_MARK:]
        if self.body_cut or self.body_size + len(data) > MAX_BODY_BYTES:
            self.body_cut = True
        else:
            self.body.append(data)
            self.body_size += len(data)
        return self.is_done

    def fail(self, kind: str, status: int | None = None, time_ns: int | None = None) -> None:
        """Note why the attempt failed, with the status of its answer where that is why, and when: now, if `time_ns`
        does not say. The first reason counts."""
        if status is not None:
            self.status = status
        if self.failed is None:
            code = {} if status is None else {semconv.HTTP_STATUS_CODE: status}
            self.failed = time_ns or time.time_ns(), {**code, semconv.ERROR_TYPE: kind}

    def exchange(self, ending: Ending, path: str) -> Exchange:
        """What was on the wire; `path` is that of the URL."""
        headers = picked(self.headers, KEPT_RESPONSE_HEADERS)
        if self.body_undone:
            headers.pop("content-encoding", None)
        return Exchange(
            request=self.request,
            status=self.status,
            headers=headers,
            body=b"".join(self.body),
            ending=ending,
            body_cut=self.body_cut,
            request_unread=self.request_unread,
            path=path,
        )

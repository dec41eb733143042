"""Server-sent events: the data of each whole event in a body that may end anywhere."""

from __future__ import annotations

from collections.abc import Iterator


def event_data(body: bytes) -> Iterator[bytes]:
    """The data of each event that was dispatched by a blank line, as the HTML standard has it.

    Comments and other fields are passed over; an event without its blank line was cut and is dropped.
    """
    if b"\r" not in body:  # so nearly every server writes
        start = 0
        while (end := body.find(b"\n\n", start)) >= 0 and body.startswith(b"data: ", start):
            if body.find(b"\n", start, end) >= 0:
                break
            yield body[start + 6 : end]
            start = end + 2
        body = body[start:]
    data: list[bytes] = []
    for line in body.removeprefix(b"\xef\xbb\xbf").splitlines():
        if not line:
            if data:
                yield b"\n".join(data)
                data = []
        elif line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            data.append(b"")

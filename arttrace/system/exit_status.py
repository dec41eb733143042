"""How a process ended, in words: its exit code, or the signal that killed it and what such a death usually means."""

from __future__ import annotations

import signal

_OF_A_SHELL = 128
_CRASHED = "a compiled package crashed; the last lines of the output may name it"
_USUALLY = {
    "SIGILL": "an illegal instruction: a compiled package was built for a CPU that has more instructions than this one",
    "SIGKILL": "killed from outside, which usually means that the machine ran out of memory",
    "SIGSEGV": _CRASHED,
    "SIGABRT": _CRASHED,
    "SIGFPE": _CRASHED,
    "SIGBUS": "a mapped file could not be read: the disk or /dev/shm is full, or a file was cut meanwhile",
}


def how_ended(code: int | None) -> str:
    """`code` as `subprocess` has it (-N for signal N), or as a shell has it (128 + N)."""
    if code is None:
        return "no exit code"
    if name := _signal(-code):
        return f"signal {name}{_meaning(name)}"
    if name := _signal(code - _OF_A_SHELL):
        return f"exit code {code}, signal {name}{_meaning(name)}"
    return f"exit code {code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _meaning(name: str) -> str:
    return f": {_USUALLY[name]}" if name in _USUALLY else ""

"""How a program of the loop sees that its commands ended, and ends what it waits for itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from backend_commands import alive

from arttrace.loop.processes.child import Child


async def test_the_end_of_a_command_is_seen_while_what_it_started_holds_its_output() -> None:
    child = Child.start("sh", "-c", "sleep 600 & echo $!; echo no memory >&2; read line; exit 3")
    left_behind = int(await child.line())
    try:
        async with asyncio.timeout(60):
            child.send(b"go on")  # it ends while its end is waited for
            assert [line async for line in child.lines()] == []
            assert await child.wait() == 3
            await child.stop()
        assert alive(left_behind)
        assert child.last_lines() == "no memory"
    finally:
        os.kill(left_behind, signal.SIGKILL)


async def test_who_waits_for_a_line_is_cancelled_in_the_turn_in_which_one_comes() -> None:
    """Python 3.11's `asyncio.wait_for` returns the line then, and who cancelled waits for good."""
    child = Child.start("sh", "-c", "read line")
    waiting = asyncio.create_task(child.line())
    await asyncio.sleep(0.01)
    child._tell()
    await asyncio.sleep(0)
    assert waiting.cancel()
    try:
        assert await asyncio.wait((waiting,), timeout=5) == ({waiting}, set())
        assert waiting.cancelled()
    finally:
        await child.stop()


NOT_ASYNCHRONOUS = """
import asyncio, os, signal
import arttrace.loop as art

async def agent(client, prompt):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)
    finally:
        print("cancelled", flush=True)

art.ArtClient("http://127.0.0.1:9", agents={"wait": agent}).run_agent(task="wait", prompt="x")
"""


def test_one_ctrl_c_ends_the_call_of_a_client_that_is_not_asynchronous() -> None:
    ran = subprocess.run([sys.executable, "-c", NOT_ASYNCHRONOUS], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "cancelled\n"
    assert (ran.returncode, ran.stderr.strip().splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")

"""What the demo draws on a terminal: phases with their spinner, on one line each."""

from __future__ import annotations

import io
import re

from rich.console import Console

from trainer.demo.screen import Screen

WIDTH = 60


def test_what_a_phase_says_stays_on_one_line_whatever_it_holds() -> None:
    drawn = io.StringIO()
    screen = Screen(Console(file=drawn, force_terminal=True, width=WIDTH, highlight=False))
    with screen.phase("vLLM and gateway") as phase:
        phase.update("a log's words [/]: " + "starting /a/long/path " * 9 + "\nand another line")
        phase.result = "serving policy@0"
    frames = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in re.split("[\r\n]", drawn.getvalue())]
    [spoken] = {frame[2:] for frame in frames if "words" in frame}
    assert spoken.startswith("vLLM and gateway a log's words [/]: starting")
    assert spoken.endswith("…")
    assert max(map(len, frames)) <= WIDTH

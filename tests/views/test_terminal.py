"""What people read in a terminal, whatever a sender sent."""

from __future__ import annotations

import io

from msgspec.structs import replace
from rich.console import Console

from arttrace.records.reward import Reward
from arttrace.records.sequence import TokenReport
from arttrace.records.trajectory import Agent, Trajectory
from arttrace.views.console.comparison import compare, side_by_side
from arttrace.views.console.events import RunEvent, line
from arttrace.views.labels import group_name
from arttrace.views.terminal import trajectory_view


def test_a_key_deeper_than_a_parser_goes_is_shown_as_it_is() -> None:
    for deep in ("[" * 3000, *('{"a":' * depth + "1" + "}" * depth for depth in range(900, 1000))):
        assert group_name(f"e {deep}", "e") == deep


def test_agents_nested_deeper_than_a_page_is_wide_are_left_out() -> None:
    agents = [Agent(id=str(n), name=f"a{n}", parent_id=str(n - 1) if n else None, start_ns=n) for n in range(1000)]
    out = Console(file=io.StringIO(), width=400)
    out.print(trajectory_view(Trajectory(id="t", revision="r", agents=tuple(agents)), [], TokenReport(), None))
    assert isinstance(out.file, io.StringIO)
    shown = out.file.getvalue()
    assert "agent a40" in shown
    assert "agent a41" not in shown
    assert "left out" in shown


def test_no_name_that_a_sender_chose_steers_the_terminal() -> None:
    steers = "\x1b[2J\x9b2J"
    agents = (Agent(id=f"root{steers}", name=f"planner{steers}", start_ns=1),)
    given = Reward("r", f"run{steers}", 1.0, f"points{steers}", f"judge{steers}", agent_id=agents[0].id)
    run = Trajectory(id=f"run{steers}", revision="r", agents=agents, rewards=(given,))
    out = Console(file=io.StringIO(), width=400)
    out.print(trajectory_view(replace(run, group=steers), [], TokenReport(), 1.0, [f"late{steers}"]))
    out.print(line(RunEvent(1, run.id, "reward", given.name, text=given.source, value=1.0), f"{steers}run", "12:00:00"))
    out.print(side_by_side(compare(run, run, 5), out, [run.id, run.id]))
    assert isinstance(out.file, io.StringIO)
    shown = out.file.getvalue()
    assert "points" in shown
    assert not {c for c in shown if not c.isprintable()} - {"\n"}

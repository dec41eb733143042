"""Calls of agents in any language: recorded by URL, header or traceparent, in the right trajectory, each once."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from gateway_site import Site, gateway_at
from stand_in_engine import write_adapter

from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import open_store
from arttrace.system.paths import DataDir
from arttrace.wire.content import ContentRules
from trainer.gateway.recording.open_runs import OpenRun, OpenRuns
from trainer.gateway.recording.recorder import GatewayRecorder
from trainer.gateway.recording.trajectories import IDLE_TAG

MESSAGES = [{"role": "user", "content": "6 x 7?"}]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def call(site: Site, url: str = "/v1/chat/completions", headers: dict[str, str] | None = None, **more: object):
    body = {"model": "policy:latest", "messages": MESSAGES, **more}
    return await site.http.post(url, json=body, headers=headers)


def full(_payload: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def taken_in(site: Site) -> tuple[dict[str, Trajectory], list[SpanRow]]:
    """What a reader of the data directory finds, the gateway still running."""
    site.gateway.recorder.close()
    with open_store(DataDir(site.directory), create=True) as store:
        found = {trajectory.id: trajectory for trajectory in store.trajectories()}
        return found, [span for id in found for span in store.spans(id)]


async def test_a_trajectory_is_named_by_its_url_and_whole_when_it_is_ended(site: Site) -> None:
    await site.publish(1, write_adapter(site.directory / "a", b"w1"))
    for _ in range(2):
        assert (await call(site, "/r/run-7/v1/chat/completions", seed=3)).status_code == 200
    assert (await call(site, "/r/other/v1/chat/completions")).status_code == 200
    assert (await call(site)).status_code == 200  # names none: recorded in its own process, or nowhere
    order = {"reward": 0.5, "scenario": "s", "group": "g", "tags": ["held-out"], "metadata": {"k": [1]}}
    order["result"] = {"answer": "42"}
    ended = await site.http.post("/r/run-7/end", json=order)
    assert ended.json() == {"trajectory": "run-7", "calls": 2, "already_ended": False}
    for tags in (["late"], ["later"]):
        again = await site.http.post("/r/run-7/end", json={"reward": 9.0, "tags": tags})
        assert again.json()["already_ended"]

    found, spans = taken_in(site)
    assert set(found) == {"run-7", "other"}
    run = found["run-7"]
    assert (run.incomplete, run.scenario, run.group, run.metadata) == ("", "s", "g", {"k": [1]})
    assert run.tags == ("held-out", "late")
    assert (run.result, [reward.value for reward in run.rewards]) == ({"answer": "42"}, [0.5])
    assert [agent.name for agent in run.agents] == ["agent"]
    assert [each.call.policy_version for each in run.calls] == ["policy@1"] * 2
    assert [message.text for message in run.calls[0].call.messages] == ["6 x 7?"]
    assert found["other"].incomplete == "run in progress"
    chats = [span for span in spans if span.kind == 3]
    assert {span.name for span in chats} == {"chat policy:latest"}
    assert {span.attributes.get("gen_ai.request.seed") for span in chats} == {3, None}
    assert all(span.start_ns <= span.end_ns for span in chats)
    with open_store(DataDir(site.directory)) as store:  # its group was said at its end, after its root was recorded
        assert [run.id for run in store.trajectories(groups=["g"])] == ["run-7"]
        assert [run.id for run in store.summaries(group="g")] == ["run-7"]


async def test_a_conversation_that_grows_is_in_the_spool_about_once(site: Site) -> None:
    """Each call's record holds all that was said before: 500 turns took 139 MB."""
    texts = [f"{turn} " + " ".join(str(turn * word) for word in range(600)) for turn in range(40)]
    messages: list[dict[str, str]] = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        assert (await call(site, "/r/long/v1/chat/completions", messages=messages)).status_code == 200
    await site.http.post("/r/long/end", json={})
    said = sum(map(len, texts))
    spooled = sum(path.stat().st_size for path in (site.directory / "spool").iterdir())
    found, _ = taken_in(site)
    assert spooled < 8 * said, "each call holds the whole conversation again: that is 20 times"
    assert [[message.text for message in one.call.messages] for one in found["long"].calls] == [
        texts[: turn + 1] for turn in range(40)
    ]


async def test_open_runs_are_ended_by_a_gateway_that_was_started_again(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as first:
        for path in ("/r/run-7", "/r/run-7/search", "/r/over"):
            assert (await call(first, f"{path}/v1/chat/completions")).status_code == 200
        assert (await first.http.post("/r/over/end")).status_code == 200
    async with gateway_at(tmp_path) as again:
        assert (await call(again, "/r/run-7/v1/chat/completions")).status_code == 200
        ended = await again.http.post("/r/run-7/end", json={"reward": 0.5})
        assert ended.json() == {"trajectory": "run-7", "calls": 3, "already_ended": False}
        assert (await again.http.post("/r/over/end")).status_code == 404
        found, _ = taken_in(again)
    assert {id: (run.incomplete, len(run.calls)) for id, run in found.items()} == {"run-7": ("", 3), "over": ("", 1)}
    assert [agent.name for agent in found["run-7"].agents] == ["agent", "search"]
    assert [reward.value for reward in found["run-7"].rewards] == [0.5]
    async with gateway_at(tmp_path) as third:
        assert (await third.http.post("/r/run-7/end")).status_code == 404


@pytest.mark.parametrize("machine", ["the same start", "another start"])
async def test_a_run_that_lost_a_call_with_its_gateway_is_not_whole(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_at(tmp_path / "killed") as killed:
        assert (await call(killed, "/r/lost/v1/chat/completions")).status_code == 200
        assert (await call(killed, "/r/kept/v1/chat/completions")).status_code == 200
        await killed.gateway.recorder.take([])  # what came before is on the disk
        lost = asyncio.create_task(call(killed, "/r/lost/v1/chat/completions", stream=True))
        while len(killed.engine.generations) < 3:
            await asyncio.sleep(0.005)
        shutil.copytree(tmp_path / "killed", tmp_path / "left")  # as SIGKILL would leave it
        killed.engine.release.set()
        await lost
    if machine == "another start":
        monkeypatch.setattr("trainer.gateway.recording.open_runs._boot", lambda: "another")
    async with gateway_at(tmp_path / "left") as again:
        statuses = [(await again.http.post(f"/r/{run}/end")).status_code for run in ("lost", "kept")]
        found, _ = taken_in(again)
    if machine == "another start":
        assert statuses == [404, 404]
        assert {run.incomplete for run in found.values()} == {"run in progress"}
    else:
        assert statuses == [200, 200]
        assert {id: run.incomplete for id, run in found.items()} == {"lost": "1 of 3 spans missing", "kept": ""}


async def test_open_runs_that_cannot_be_noted_are_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Half of the notes would tell of fewer calls than there were."""
    async with gateway_at(tmp_path) as site:
        assert (await call(site, "/r/run-7/v1/chat/completions")).status_code == 200

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr("trainer.gateway.recording.open_runs.os.write", full)
            assert (await call(site, "/r/run-7/v1/chat/completions")).status_code == 200
        assert (await call(site, "/r/run-7/v1/chat/completions")).status_code == 200
    assert capfd.readouterr().out.count("none can be ended after a restart") == 1
    async with gateway_at(tmp_path) as again:
        assert (await again.http.post("/r/run-7/end")).status_code == 404


def test_notes_are_written_anew_before_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.gateway.recording.open_runs._MAX_BYTES", 1000)
    notes = OpenRuns(tmp_path / "open_runs", print)
    for number in range(200):
        notes.call_began("long", 5 + number, "search" if number % 2 else None)
        notes.call_began(f"short {number}", number)
        notes.ended(f"short {number}")
        assert (tmp_path / "open_runs").stat().st_size < 2000
    assert OpenRuns(tmp_path / "open_runs", print).runs == {"long": OpenRun(5, 200, {"search": 6})}


async def test_sub_agents_are_named_in_the_url(site: Site) -> None:
    for path in ("", "/search", "/search", "/write"):
        assert (await call(site, f"/r/t/{path.strip('/')}/v1/chat/completions".replace("//", "/"))).status_code == 200
    await site.http.post("/r/t/end")
    run = taken_in(site)[0]["t"]
    assert run.incomplete == ""
    assert {agent.name: agent.parent_id for agent in run.agents[1:]} == {
        "search": run.agents[0].id,
        "write": run.agents[0].id,
    }
    names = {agent.id: agent.name for agent in run.agents}
    assert [names[each.agent_id] for each in run.calls] == ["agent", "search", "search", "write"]


async def test_a_header_names_a_trajectory_too_and_capture_s_own_baggage_forbids_it(site: Site) -> None:
    headers = {"x-arttrace-trajectory-id": "h"}
    await call(site, headers=headers)
    await call(site, headers=headers | {"baggage": f"a=b,arttrace.context=00-{TRACE}-{SPAN}-01;trajectory=x"})
    await call(site, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})  # sent unasked by many: says nothing here
    await site.http.post("/r/h/end", json={})
    found, _ = taken_in(site)
    assert {id: len(run.calls) for id, run in found.items()} == {"h": 1}


async def test_a_traceparent_places_a_call_where_the_gateway_is_set_so(site: Site) -> None:
    site.gateway.joins_traceparents = True
    for parent in (f"00-{TRACE}-{SPAN}-01", "nonsense", f"00-{'0' * 32}-{SPAN}-01"):
        assert (await call(site, headers={"traceparent": parent})).status_code == 200
    _, spans = taken_in(site)
    assert [(span.trace_id, span.parent_span_id) for span in spans] == [(TRACE, SPAN)]


async def test_token_truth_of_streams_errors_and_refusals_is_recorded(site: Site) -> None:
    site.engine.release.set()
    await call(site, "/r/t/v1/chat/completions", stream=True)
    site.engine.drop = 1
    assert (await call(site, "/r/t/v1/chat/completions")).status_code == 503
    assert (await call(site, "/r/t/v1/chat/completions", model="gpt-4o")).status_code == 404
    site.engine.break_stream = True
    await call(site, "/r/t/v1/chat/completions", stream=True)
    await site.http.post("/r/t/end")
    found, spans = taken_in(site)
    assert found["t"].incomplete == ""
    chats = sorted((span for span in spans if span.kind == 3), key=lambda span: span.start_ns)
    assert [span.attributes.get("http.response.status_code") for span in chats] == [200, 503, 404, 200]
    assert [span.attributes.get("error.type") for span in chats] == [None, "503", "404", "stream_error"]
    assert [span.status_code for span in chats] == [0, 2, 2, 2]
    assert chats[0].attributes["gen_ai.request.stream"] is True
    assert chats[0].attributes["gen_ai.response.time_to_first_chunk"] > 0


async def test_a_clock_that_is_set_back_lets_no_span_end_before_it_began(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.create_task(call(site, "/r/t/search/v1/chat/completions", stream=True))
    async with asyncio.timeout(60):
        while not site.engine.generations:
            await asyncio.sleep(0.005)
    with monkeypatch.context() as clock:
        now = time.time_ns()
        clock.setattr("time.time_ns", lambda: now - 3600 * 10**9)
        site.engine.release.set()
        assert (await asked).status_code == 200
        assert (await site.http.post("/r/t/end")).status_code == 200
    found, spans = taken_in(site)
    ended = [span for span in spans if span.end_ns]
    assert (found["t"].incomplete, len(ended)) == ("", 3)
    assert all(span.start_ns <= span.end_ns for span in ended)
    assert all(span.attributes.get("gen_ai.response.time_to_first_chunk", 0) >= 0 for span in spans)


async def test_a_client_that_leaves_is_recorded_and_the_trajectory_is_whole(site: Site) -> None:
    site.engine.held = True
    leaving = asyncio.create_task(call(site, "/r/t/v1/chat/completions"))
    async with asyncio.timeout(60):
        while not site.engine.generations:
            await asyncio.sleep(0.005)
        leaving.cancel()
        while site.gateway.gate.inside:
            await asyncio.sleep(0.005)
    await site.http.post("/r/t/end")
    found, spans = taken_in(site)
    assert found["t"].incomplete == ""
    [left] = [span for span in spans if span.kind == 3]
    assert left.attributes["arttrace.interrupted"] == "closed"


async def test_an_end_before_its_last_call_is_over_waits_for_it_in_the_store(site: Site) -> None:
    site.engine.held = True
    under_way = asyncio.create_task(call(site, "/r/t/v1/chat/completions"))
    async with asyncio.timeout(60):
        while not site.engine.generations:
            await asyncio.sleep(0.005)
    assert (await site.http.post("/r/t/end")).json()["calls"] == 1
    found, _ = taken_in(site)
    assert found["t"].incomplete == "1 of 2 spans missing"
    site.engine.release.set()
    await under_way
    async with asyncio.timeout(60):
        while site.gateway.gate.inside:
            await asyncio.sleep(0.005)
    found, _ = taken_in(site)
    assert (found["t"].incomplete, len(found["t"].calls)) == ("", 1)


async def end_quiet_ones(site: Site) -> None:
    idle = asyncio.create_task(site.gateway.recorder.end_idle_ones(0.05))
    async with asyncio.timeout(60):
        while site.gateway.recorder.trajectories.open:
            await asyncio.sleep(0.01)
    idle.cancel()


async def test_a_quiet_trajectory_ends_by_itself_and_says_so(site: Site) -> None:
    await call(site, "/r/t/v1/chat/completions")
    await end_quiet_ones(site)
    run = taken_in(site)[0]["t"]
    assert (run.incomplete, run.tags) == ("", (IDLE_TAG,))
    order = {"reward": 0.5, "metadata": {"user": "ada"}, "group": "sums", "error": "timeout", "tags": ["held-out"]}
    for _ in range(2):  # what its agent says of it later is kept, once
        assert (await site.http.post("/r/t/end", json=order)).json()["already_ended"]
    run = taken_in(site)[0]["t"]
    assert (run.incomplete, run.tags) == ("", (IDLE_TAG, "held-out"))
    assert [reward.value for reward in run.rewards] == [0.5]
    assert run.metadata == {"user": "ada", "group": "sums", "error": "timeout"}


async def test_calls_after_a_quiet_while_are_said_to_be_so(site: Site) -> None:
    """A tool may have taken longer than that; or it is another run."""
    await call(site, "/r/t/v1/chat/completions")
    await end_quiet_ones(site)
    await call(site, "/r/t/v1/chat/completions")
    assert (await site.http.post("/r/t/end", json={"reward": 1.0})).json()["already_ended"]
    run = taken_in(site)[0]["t"]
    assert run.incomplete == (
        "a span was refused: calls came after it was ended as quiet: give --trajectory-idle-seconds more, or, if "
        "they are a second run's, each run a name of its own"
    )
    assert [reward.value for reward in run.rewards] == [1.0]


async def test_rewards_are_given_once_by_id(site: Site) -> None:
    await call(site, "/r/t/v1/chat/completions")
    for value in (1.0, 2.0):
        answer = await site.http.post("/r/t/reward", json={"value": value, "id": "mine", "explanation": "why"})
        assert answer.json() == {"id": "mine"}
    await site.http.post("/r/t/reward", json={"value": 0.25, "name": "style"})
    await site.http.post("/r/t/end")
    run = taken_in(site)[0]["t"]
    assert {(reward.name, reward.value) for reward in run.rewards} == {("reward", 2.0), ("style", 0.25)}


async def test_what_is_no_end_is_reported(site: Site) -> None:
    assert (await site.http.post("/r/never/end")).status_code == 404
    await call(site, "/r/t/v1/chat/completions")
    assert "rewards" in (await site.http.post("/r/t/end", json={"rewards": 1})).json()["error"]["message"]
    assert (await site.http.post("/r/t/reward", json={"value": "x"})).status_code == 400
    assert (await site.http.post("/r/t/reward", json={})).status_code == 400
    assert (await call(site, f"/r/{'x' * 257}/v1/chat/completions")).status_code == 400
    assert (await call(site, "/r/%00/v1/chat/completions")).status_code == 400
    page = await site.http.post("/r/t/end", content=b"{}", headers={"content-type": "text/plain"})
    assert page.status_code == 415
    assert (await site.http.post("/r/t/end")).status_code == 200


async def test_a_full_disk_harms_no_call_and_an_end_says_that_it_was_not_taken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.gateway.recorder._journal, "append", full)
    assert (await call(site, "/r/t/v1/chat/completions")).status_code == 200
    answer = await site.http.post("/r/t/end")
    assert (answer.status_code, "No space left" in answer.text) == (507, True)
    recording = (await site.http.get("/arttrace/status")).json()["recording"]
    assert (recording["recorded"], recording["refused"] >= 3) == (0, True)


async def test_two_runs_of_one_name_are_not_taken_for_one_that_is_whole(site: Site) -> None:
    for reward in (0.0, 1.0):
        await call(site, "/r/t/v1/chat/completions")
        ended = (await site.http.post("/r/t/end", json={"reward": reward})).json()
        assert ended == {"trajectory": "t", "calls": 1, "already_ended": bool(reward)}
    await call(site, "/r/straggler/v1/chat/completions")
    assert not (await site.http.post("/r/straggler/end")).json()["already_ended"]
    await call(site, "/r/straggler/v1/chat/completions")
    runs = taken_in(site)[0]
    assert runs["t"].incomplete == (
        "a span was refused: a second run was ended under this name, whose calls are among these: give each run its own"
    )
    assert [reward.value for reward in runs["t"].rewards] == [0.0]
    assert runs["straggler"].incomplete == ""


async def test_an_end_that_was_not_taken_may_be_sent_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await call(site, "/r/t/v1/chat/completions")
    async with asyncio.timeout(60):
        while site.gateway.recorder.recorded < 2:
            await asyncio.sleep(0.005)
    with monkeypatch.context() as broken:
        broken.setattr(site.gateway.recorder._journal, "append", full)
        assert (await site.http.post("/r/t/end", json={"reward": 1.0})).status_code == 507
    assert (await site.http.post("/r/t/end", json={"reward": 1.0})).json()["already_ended"]
    run = taken_in(site)[0]["t"]
    assert (run.incomplete, [reward.value for reward in run.rewards]) == ("", [1.0])


async def test_what_the_disk_did_not_take_of_an_end_is_kept_whatever_comes_before_it_is_sent_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call(site, "/r/t/v1/chat/completions")
    with monkeypatch.context() as broken:
        broken.setattr(site.gateway.recorder._journal, "append", full)
        assert (await site.http.post("/r/t/end", json={"reward": 1.0})).status_code == 507
    await call(site, "/r/t/v1/chat/completions")
    assert (await site.http.post("/r/t/end", json={"reward": 1.0})).json()["already_ended"]
    found, spans = taken_in(site)
    assert [reward.value for reward in found["t"].rewards] == [1.0]
    assert any(span.name == "invoke_agent agent" and span.end_ns for span in spans)


async def test_a_quiet_trajectory_whose_end_the_disk_did_not_take_ends_when_it_does(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = site.gateway.recorder
    await call(site, "/r/t/v1/chat/completions")
    await recorder.take([])  # what came before is on the disk
    with monkeypatch.context() as broken:
        broken.setattr(recorder._journal, "append", full)
        idle = asyncio.create_task(recorder.end_idle_ones(0.05))
        async with asyncio.timeout(60):
            while not recorder.refused:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
    written = recorder.recorded
    async with asyncio.timeout(60):
        while recorder.recorded == written and not idle.done():
            await asyncio.sleep(0.005)
    idle.cancel()
    run = taken_in(site)[0]["t"]
    assert (run.incomplete, run.tags, recorder.refused) == ("", (IDLE_TAG,), 1)


async def test_content_that_is_not_wanted_is_not_written(site: Site, tmp_path: Path) -> None:
    site.gateway.recorder = GatewayRecorder(site.directory / "spool", rules=ContentRules("off"))
    await call(site, "/r/t/v1/chat/completions", headers={"authorization": "Bearer geheim"})
    await site.http.post("/r/t/end", json={"result": "secret answer"})
    site.gateway.recorder.close()
    written = b"".join(path.read_bytes() for path in (site.directory / "spool").iterdir())
    assert b"chat policy:latest" in written
    for hidden in (b"6 x 7?", b"secret answer", b"geheim"):
        assert hidden not in written


def test_the_same_name_gives_the_same_ids() -> None:
    from trainer.gateway.recording.identity import trajectory_owner

    one = trajectory_owner("t", "a")
    assert one == trajectory_owner("t", "a")
    assert one.parent_span_id != trajectory_owner("t").parent_span_id
    assert trajectory_owner(TRACE).trace_id == TRACE
    assert json.dumps(one.trace_id).strip('"').isalnum()


async def test_whoever_waits_for_a_record_may_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was on the disk by then counted as lost, and a line said so."""
    said: list[str] = []
    recorder = GatewayRecorder(tmp_path / "spool", say=said.append)
    sync, goes_on = recorder._journal.sync, threading.Event()
    monkeypatch.setattr(recorder._journal, "sync", lambda: goes_on.wait(60) and sync())
    waiting = asyncio.create_task(recorder.take([Reward(id="r", trajectory_id="t", value=1.0)]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    goes_on.set()
    await asyncio.to_thread(recorder.close)
    assert (recorder.recorded, recorder.refused, said) == (1, 0, [])

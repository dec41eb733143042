"""Serving with a real vLLM: token truth, hot swap under load, death and return, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest
from stand_in_engine import engine_in_a_thread
from tiny_model import make_adapter, make_base_model, reference_logprobs
from transformers import AutoTokenizer

from arttrace.store import open_store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from trainer.serving import Serving, start_serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

NODE = Path(__file__).parent / "node"
MESSAGES = [{"role": "user", "content": "How much is 6 times 7?"}]


@dataclass
class Site:
    serving: Serving
    data: DataDir
    base_model: Path
    adapters: dict[int, Path]

    def publish(self, step: int) -> float:
        return self.serving.client().publish(step, self.adapters[step]).max_logprob_change

    def chat(self, model: str = "policy:latest", *, timeout: float = 300, **more: Any) -> httpx.Response:
        body = {"model": model, "messages": MESSAGES, "max_tokens": 8, **more}
        return httpx.post(f"{self.serving.url}/v1/chat/completions", json=body, timeout=timeout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("serving")
    base_model = make_base_model(root / "base")
    adapters = {step: make_adapter(base_model, root / f"policy@{step}", step) for step in range(1, 8)}
    data = DataDir(root / "data")
    # vLLM's development endpoints ask for no key: they are there so that a test sees who can reach them.
    with start_serving(data, base_model, env={"VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1"}) as serving:
        yield Site(serving, data, base_model, adapters)


def _engine_group(serving: Serving) -> int:
    """The process group of vLLM: that of the guard which is the server's child."""
    children = subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(serving.record.pid)], text=True).split()
    assert len(children) == 1
    return int(children[0])


def _members(group: int) -> list[str]:
    lines = subprocess.run(["ps", "-o", "pid=,stat=,args=", "-g", str(group)], capture_output=True, text=True).stdout
    return [line for line in lines.splitlines() if " Z" not in line]


def _sockets(group: int) -> set[Path]:
    """The sockets in the file system that a process of the group has."""
    pids = subprocess.check_output(["ps", "-o", "pid=", "-g", str(group)], text=True).split()
    opened = [one.laddr for pid in pids for one in psutil.Process(int(pid)).net_connections("unix")]
    return {Path(path) for path in opened if str(path).startswith("/")}


def _listening(group: int) -> list[tuple[str, int]]:
    """The TCP addresses on which a process of the group listens."""
    held = set()
    for pid in subprocess.check_output(["ps", "-o", "pid=", "-g", str(group)], text=True).split():
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                held.add(str(descriptor.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in held:
                address, port = words[1].split(":")
                shown = ".".join(str(byte) for byte in reversed(bytes.fromhex(address))) if table == "tcp" else address
                found.append((shown, int(port, 16)))
    return found


def _open_sockets(pid: int) -> set[str]:
    targets = [str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
    return {target for target in targets if target.startswith("socket:")}


def _policy_of(answer: httpx.Response) -> str:
    return answer.headers["x-arttrace-policy-version"]


def test_an_unchanged_client_gets_token_truth_that_a_reference_confirms(site: Site) -> None:
    assert site.publish(1) > 0.01
    with openai.OpenAI(base_url=f"{site.serving.url}/v1", api_key="arttrace") as client:
        answer = client.chat.completions.create(model="policy:latest", messages=MESSAGES, max_tokens=12)
    whole = answer.model_dump()
    choice = whole["choices"][0]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert whole["model"] == "policy@1"
    assert len(choice["token_ids"]) == len(logprobs) == answer.usage.completion_tokens
    prompt = whole["prompt_token_ids"]
    expected = reference_logprobs(site.base_model, site.adapters[1], prompt, choice["token_ids"])
    assert logprobs == pytest.approx(expected, abs=1e-3)
    base = site.chat("policy@0", max_tokens=12, seed=1).json()["choices"][0]
    unadapted = reference_logprobs(site.base_model, None, prompt, base["token_ids"])
    assert [entry["logprob"] for entry in base["logprobs"]["content"]] == pytest.approx(unadapted, abs=1e-3)


@pytest.mark.skipif(sys.platform != "linux", reason="the engine is a fork on Linux alone")
def test_with_one_thread_on_a_cpu_the_engine_is_a_fork_of_the_api_server(site: Site) -> None:
    [server] = psutil.Process(_engine_group(site.serving)).children()
    [engine] = [child for child in server.children() if "EngineCore" in " ".join(child.cmdline())]
    assert _open_sockets(server.pid) & _open_sockets(engine.pid)
    assert engine.memory_info().rss < 1 << 30, "a tiny model's cache is a part of a GiB"
    # Else requests would be taken, and not refused, while a server that died has left an engine.
    listens = (site.serving.client().status().engine.url or "").removeprefix("unix:")
    assert listens in [one.laddr for one in server.net_connections("unix")]
    assert listens not in [one.laddr for one in engine.net_connections("unix")]


def test_a_stream_carries_the_same_truth(site: Site) -> None:
    prompt: list[int] = []
    token_ids: list[int] = []
    logprobs: list[float] = []
    with openai.OpenAI(base_url=f"{site.serving.url}/v1", api_key="arttrace") as client:
        stream = client.chat.completions.create(model="policy", messages=MESSAGES, max_tokens=12, stream=True)
        for chunk in stream:
            data = chunk.model_dump()
            prompt = data.get("prompt_token_ids") or prompt
            for choice in data["choices"]:
                token_ids += choice.get("token_ids") or []
                logprobs += [entry["logprob"] for entry in (choice["logprobs"] or {}).get("content") or []]
    assert len(token_ids) == len(logprobs) > 0
    step = site.serving.client().status().step
    expected = reference_logprobs(site.base_model, site.adapters.get(step), prompt, token_ids)
    assert logprobs == pytest.approx(expected, abs=1e-3)


def test_a_temperature_is_in_the_log_probabilities_and_trained_on_and_a_grammar_is_not(site: Site) -> None:
    """By the engine's log-probabilities a reference knows at which temperature it sampled."""
    forced = {"response_format": {"type": "json_object"}}
    asked = [{"temperature": 0.5}, {"temperature": 1.5}, {"temperature": 0.7, "top_p": 0.5}, {"temperature": 0}, forced]
    for each in asked:
        body = {"model": "policy:latest", "messages": MESSAGES, "max_tokens": 12, **each}
        answer = httpx.post(f"{site.serving.url}/r/heat/v1/chat/completions", json=body, timeout=300)
        assert (answer.status_code, answer.headers["x-arttrace-sampling"]) == (200, "processed")
    httpx.post(f"{site.serving.url}/r/heat/end", json={"reward": 1.0}).raise_for_status()
    with open_store(site.data, create=True) as store:
        [run] = store.trajectories(ids=["heat"])
    made, report = sequences(run)
    assert report.reasons == {"not sampled at temperature 1": 1, "sampling was narrowed or shifted": 2}
    adapter = site.adapters.get(site.serving.client().status().step)
    found = set()
    for sequence in made:
        begin = sequence.trained.index(1)
        heat = sequence.temperatures[begin]
        prompt, sampled = list(sequence.token_ids[:begin]), list(sequence.token_ids[begin:])
        expected = reference_logprobs(site.base_model, adapter, prompt, sampled, heat)
        assert list(sequence.logprobs[begin:]) == pytest.approx(expected, abs=1e-3)
        found.add(heat)
    assert found == {0.5, 1.5}


def test_anthropics_client_gets_the_same_truth_and_counts_the_same_tokens(site: Site) -> None:
    asked: dict[str, Any] = {"model": "policy", "messages": MESSAGES}
    with anthropic.Anthropic(base_url=f"{site.serving.url}/r/messages", api_key="arttrace") as client:
        counted = client.messages.count_tokens(**asked).input_tokens
        whole = client.messages.create(**asked, max_tokens=12)
        with client.messages.stream(**asked, max_tokens=12) as stream:
            streamed = stream.get_final_message()
        with pytest.raises(anthropic.BadRequestError, match="9000"):
            client.messages.create(**asked, max_tokens=9000)
    for message in (whole, streamed):
        assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == counted
        assert message.stop_reason in ("end_turn", "max_tokens")
    httpx.post(f"{site.serving.url}/r/messages/end", json={}).raise_for_status()
    step = site.serving.client().status().step
    with open_store(site.data, create=True) as store:
        [run] = store.trajectories(ids=["messages"])
    answers = [each.call for each in run.calls if each.call.choices]
    assert [answer.choices[0].message.text for answer in answers] == [whole.content[0].text, streamed.content[0].text]
    for answer in answers:
        prompt, token_ids = list(answer.prompt_token_ids), list(answer.choices[0].token_ids)
        assert len(prompt) == counted
        expected = reference_logprobs(site.base_model, site.adapters.get(step), prompt, token_ids)
        logprobs = list(answer.choices[0].logprobs)
        # Streamed, vLLM leaves out those of tokens that end inside a character: such a call is not trained on.
        assert len(logprobs) == len(expected) or answer is answers[1]
        assert logprobs == pytest.approx(expected, abs=1e-3) or len(logprobs) < len(expected)


def test_an_answer_that_anthropics_client_began_is_continued(site: Site) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "6 times 7 is"}]
    with anthropic.Anthropic(base_url=f"{site.serving.url}/r/begun", api_key="arttrace") as client:
        asked: dict[str, Any] = {"model": "policy", "messages": begun}
        counted = client.messages.count_tokens(**asked).input_tokens
        client.messages.create(**asked, max_tokens=4)
    httpx.post(f"{site.serving.url}/r/begun/end", json={}).raise_for_status()
    with open_store(site.data, create=True) as store:
        [run] = store.trajectories(ids=["begun"])
    tokenizer = AutoTokenizer.from_pretrained(site.base_model)
    [prompt] = [list(each.call.prompt_token_ids) for each in run.calls]
    assert prompt == tokenizer.apply_chat_template(begun, continue_final_message=True, return_dict=False)
    assert tokenizer.decode(prompt).endswith("6 times 7 is")
    assert len(prompt) == counted


def test_responses_carry_the_same_truth_into_the_trajectory_that_their_url_names(site: Site) -> None:
    with openai.OpenAI(base_url=f"{site.serving.url}/r/answers/v1", api_key="arttrace") as client:
        ask: dict[str, Any] = {"input": "6 times 7?", "max_output_tokens": 8, "temperature": 0}
        whole = client.responses.create(model="policy:latest", **ask)
        tool = {"type": "function", "name": "now", "parameters": {"type": "object", "additionalProperties": False}}
        asked = []  # until one is a call: a model that was taught nothing may fill the limit with blanks
        while len(asked) < 40 and not (asked and [item.type for item in asked[-1].output] == ["function_call"]):
            asked.append(
                client.responses.create(
                    model="policy", input="now?", tools=[tool], tool_choice="required", max_output_tokens=64
                )
            )
        stream = client.responses.create(model="policy", **ask, stream=True)
        [last] = [event for event in stream if event.type in ("response.completed", "response.incomplete")]
    assert whole.model == last.response.model == site.serving.client().status().current
    httpx.post(f"{site.serving.url}/r/answers/end", json={"reward": 1.0}).raise_for_status()
    with open_store(site.data, create=True) as store:
        [run] = store.trajectories(ids=["answers"])
    assert (run.incomplete, len(run.calls), [reward.value for reward in run.rewards]) == ("", 2 + len(asked), [1.0])
    adapter = site.adapters.get(int(whole.model.removeprefix("policy@")))
    choices = [each.call.choices[0] for each in run.calls if each.call.response_id not in {one.id for one in asked}]
    assert [len(choice.token_ids) for choice in choices] == [8, 8]
    expected = reference_logprobs(
        site.base_model, adapter, list(run.calls[0].call.prompt_token_ids), list(choices[0].token_ids)
    )
    assert run.calls[-1].call.prompt_token_ids == run.calls[0].call.prompt_token_ids
    for choice in choices:
        assert list(choice.logprobs) == pytest.approx(expected, abs=1e-3)
    [called] = (each.call.choices[0] for each in run.calls if each.call.response_id == asked[-1].id)
    assert [item.type for item in asked[-1].output] == ["function_call"], "an answer without text"
    assert len(called.logprobs) == len(called.token_ids) > 0


@pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules" / "openai").exists(),
    reason="the JavaScript openai package is not installed (npm ci in tests/e2e/node)",
)
def test_an_agent_in_javascript_has_its_calls_in_its_trajectory(site: Site) -> None:
    runs = [
        subprocess.Popen(
            ["node", str(NODE / "agent.mjs"), site.serving.url, f"js-{number}"], stdout=subprocess.PIPE, text=True
        )
        for number in range(2)
    ]
    said = [json.loads(run.communicate(timeout=600)[0]) for run in runs]
    version = site.serving.client().status().current
    with open_store(site.data, create=True) as store:
        found = {run.id: run for run in store.trajectories(ids=["js-0", "js-1"])}
    for number, heard in enumerate(said):
        run = found[f"js-{number}"]
        assert heard["ended"] == {"trajectory": run.id, "calls": 4, "already_ended": False}
        assert (run.incomplete, run.result, run.group) == ("", heard["text"], "sums")
        names = {agent.id: agent.name for agent in run.agents}
        assert [names[each.agent_id] for each in run.calls] == ["agent", "agent", "search", "search"]
        assert run.policy_versions == (version,)
        streamed = run.calls[1].call
        assert streamed.choices[0].message.text == heard["text"]
        for each in run.calls:
            choice = each.call.choices[0]
            assert each.call.prompt_token_ids
            assert choice.token_ids
            assert len(choice.logprobs) == len(choice.token_ids)


def test_completions_and_refusals(site: Site) -> None:
    url = f"{site.serving.url}/v1/completions"
    answer = httpx.post(url, json={"model": "policy", "prompt": "ab", "max_tokens": 3}, timeout=300)
    choice = answer.json()["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 3
    assert len(choice["prompt_token_ids"]) == 2
    too_long = site.chat(max_tokens=10_000)
    assert (too_long.status_code, too_long.json()["error"]["type"]) == (400, "BadRequestError")
    assert site.chat("policy@99").status_code == 404


def test_nobody_but_the_gateway_reaches_any_route_of_vllm(site: Site) -> None:
    """Every route that vLLM has, asked for at every port that its processes or ours listen on."""
    engine = Path((site.serving.client().status().engine.url or "").removeprefix("unix:"))
    assert (stat.S_IMODE(engine.parent.stat().st_mode), engine.is_socket()) == (0o700, True)
    as_another_user = f"import os, socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({str(engine)!r})"
    if os.getuid() == 0:
        heard = subprocess.run([sys.executable, "-S", "-c", as_another_user], capture_output=True, text=True)
        assert "PermissionError" in heard.stderr
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(engine)), base_url="http://localhost") as inside:
        paths = inside.get("/openapi.json").json()["paths"]
        assert inside.get("/is_sleeping").status_code == 200  # why it matters who may come in
    routes = [(method.upper(), re.sub(r"{\w+}", "x", path)) for path, ways in paths.items() for method in ways]
    assert {("POST", "/invocations"), ("POST", "/sleep"), ("POST", "/collective_rpc")} <= set(routes)
    with (
        engine_in_a_thread() as any_engine,  # a gateway that asks for a key does so before it thinks of an engine
        start_serving(
            DataDir(site.data.root / "keyed"),
            site.base_model,
            options=["--vllm-url", any_engine.url],
            env={"ARTTRACE_API_KEY": "k"},
        ) as keyed,
    ):
        for method, path in routes:
            status = httpx.request(method, keyed.url + path).status_code
            assert status == (200 if path == "/health" else 401), (method, path)
    served = {"/health", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses"}
    served |= {"/v1/messages", "/v1/messages/count_tokens"}  # the gateway's own, never vLLM's
    for method, path in routes:
        if path not in served:
            assert httpx.request(method, site.serving.url + path).status_code == 404, (method, path)
    asked = b"".join(
        f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode() for method, path in routes
    )

    def answered(address: str, port: int) -> bytes:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=3.0) as connection:
            connection.sendall(asked)
            return connection.recv(100)
        return b""

    assert {path.parent for path in _sockets(_engine_group(site.serving))} == {engine.parent}
    ports = _listening(_engine_group(site.serving))  # its workers speak among themselves
    with ThreadPoolExecutor(len(ports) + 1) as pool:
        assert {address.partition(".")[0] for address, _ in ports} <= {"127"}
        assert not [answer for answer in pool.map(answered, *zip(*ports, strict=True)) if b"HTTP" in answer]


async def test_swaps_under_load_fail_no_request_and_mix_no_policies(site: Site) -> None:
    """Every answer's log-probabilities are those of the version in its header, rescored by the reference."""
    before = site.serving.client().status().step
    answers: list[tuple[str, Any]] = []
    stop = asyncio.Event()

    async with httpx.AsyncClient(base_url=site.serving.url, timeout=600) as http:

        async def agent(model: str) -> None:
            while not stop.is_set():
                body = {"model": model, "messages": MESSAGES, "max_tokens": 24}
                answer = await http.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                version = _policy_of(answer)
                assert answer.json()["model"] == (site.base_model.name if version == "policy@0" else version)
                answers.append((version, answer.json()))

        async def answered_by(step: int) -> None:
            """Agents that all began at once on a busy machine may begin nothing more for a second."""
            await asyncio.sleep(0.5)
            async with asyncio.timeout(60):
                while all(version != f"policy@{step}" for version, _ in answers):
                    await asyncio.sleep(0.1)

        # vLLM computes rows of the base model in one batch with those of adapters.
        models = ["policy:latest"] * 30 + ["policy@0"] * 2
        agents = [asyncio.create_task(agent(model)) for model in models]
        for step in range(before, before + 3):
            await answered_by(step)
            assert await asyncio.to_thread(site.publish, step + 1) > 0
        await answered_by(before + 3)
        stop.set()
        await asyncio.gather(*agents)

    versions = {version for version, _ in answers}
    assert {"policy@0", *(f"policy@{step}" for step in range(before, before + 4))} <= versions
    for version in versions:
        for data in [data for stamped, data in answers if stamped == version][-6:]:
            choice = data["choices"][0]
            adapter = site.adapters.get(int(version.removeprefix("policy@")))
            expected = reference_logprobs(site.base_model, adapter, data["prompt_token_ids"], choice["token_ids"])
            assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == pytest.approx(expected, abs=1e-3)
    async with asyncio.timeout(60):
        while len(site.serving.client().status().requests) > 2:  # the base and the current one
            await asyncio.sleep(0.1)


def test_a_killed_vllm_comes_back_with_the_current_version(site: Site) -> None:
    client = site.serving.client()
    current = client.status().current
    with ThreadPoolExecutor(2) as agents:
        taken = agents.submit(site.chat, max_tokens=400, ignore_eos=True)
        deadline = time.monotonic() + 60
        while not client.status().engine.requests and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(_engine_group(site.serving), signal.SIGKILL)
        answer = taken.result()  # it may have been executed: it is not sent again
        assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
        # Those that come now are held until the engine is back.
        held = agents.submit(site.chat, timeout=300)
        deadline = time.monotonic() + 60
        while (state := client.status().engine.state) != "restarting" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert state == "restarting"
        answer = held.result()
        assert (answer.status_code, _policy_of(answer)) == (200, current)
    assert client.status().engine.restarts == 1
    step = client.status().step + 1
    assert site.publish(step) > 0
    assert _policy_of(site.chat()) == f"policy@{step}"


def test_vllm_ends_when_the_server_is_killed(site: Site) -> None:
    """Last: it takes the server away."""
    group = _engine_group(site.serving)
    engine = Path((site.serving.client().status().engine.url or "").removeprefix("unix:"))
    assert (len(_members(group)) >= 2, engine.is_socket()) == (True, True)
    os.kill(site.serving.record.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _members(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _members(group) == []
    assert not engine.parent.exists()

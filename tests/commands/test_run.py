"""`arttrace run` against real programs: captured without a line changed, and otherwise as if run alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import ChatServer, serve
from small_disk import only_root, small_disk
from spool import finished_spans, read_spans

from arttrace.capture.export import summary
from arttrace.records import semconv
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

ARTTRACE = [sys.executable, "-c", "from arttrace.commands import main; main()"]

ASK_BY_OPENAI = """
from openai import OpenAI
client = OpenAI()
def ask(text):
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content
"""
AGENT = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
if __name__ == "__main__":
    print(ask("plan"))
    with ThreadPoolExecutor(2) as pool:
        print(sorted(pool.map(ask, ["left", "right"])))
    print(sys.argv[1:], [p for p in sys.path if "bootstrap" in p])
    sys.exit(7)
"""


def run(
    directory: Path, server: ChatServer | None, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OPENAI_API_KEY": "sk-test-key-1234", "ARTTRACE_RAISE": "1", **environment}
    env["OPENAI_BASE_URL"] = server.url if server else "http://127.0.0.1:9"
    return subprocess.run(
        [*ARTTRACE, "run", "--quiet", "--dir", str(directory / "data"), *arguments],
        cwd=directory, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serve() as running:
        yield running


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "agent.py"
    path.write_text(ASK + AGENT)
    for name, value in CAPTURED.items():
        monkeypatch.setenv(name, value)
    return path


def test_a_whole_program_is_one_trajectory_and_its_exit_code_its_own(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "agent.py").write_text(ASK_BY_OPENAI + AGENT)
    done = run(tmp_path, server, "--project", "shop", "--", sys.executable, "agent.py", "--task", "3")
    assert done.returncode == 7, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "answer 0 to plan",
        "['answer 0 to left', 'answer 0 to right']",
        "['--task', '3'] []",
    ]
    spans = finished_spans(tmp_path / "data")
    (root,) = [span for span in spans if span.parent_span_id is None]
    assert root.name == "invoke_agent agent"
    assert root.attributes[semconv.ENTRY].endswith("agent.py")
    assert root.attributes[semconv.PROJECT] == "shop"
    assert json.loads(root.attributes[semconv.ENTRY_ARGUMENTS]) == {"argv": ["--task", "3"]}
    assert root.attributes[semconv.TRAJECTORY_SPAN_COUNT] == 3
    calls = [span for span in spans if span is not root]
    assert {span.parent_span_id for span in calls} == {root.span_id}
    planner, *workers = sorted(calls, key=lambda span: span.start_ns)
    parent = planner.attributes[semconv.EXECUTION_ID]
    assert parent == root.attributes[semconv.EXECUTION_ID]
    assert {span.attributes[semconv.EXECUTION_PARENT_ID] for span in workers} == {parent}
    assert len({span.attributes[semconv.EXECUTION_ID] for span in workers}) == 2


def test_a_module_and_a_script_without_python_before_them(tmp_path: Path, agent: Path, server: ChatServer) -> None:
    for arguments in (("-m", "agent"), ("agent.py",)):
        assert run(tmp_path, server, *arguments).returncode == 7
    roots = [span for span in finished_spans(tmp_path / "data") if span.parent_span_id is None]
    assert [root.name for root in roots] == ["invoke_agent agent"] * 2


def test_a_programs_own_trajectories_are_not_wrapped(tmp_path: Path, agent: Path, server: ChatServer) -> None:
    (tmp_path / "own.py").write_text(
        textwrap.dedent(
            """
            import arttrace
            from agent import ask
            @arttrace.trajectory
            def mine(text):
                return ask(text)
            mine("one")
            mine("two")
            """
        )
    )
    assert run(tmp_path, server, "own.py").returncode == 0
    spans = finished_spans(tmp_path / "data")
    assert sorted(span.name for span in spans) == ["chat m", "chat m", "invoke_agent mine", "invoke_agent mine"]


def test_a_program_that_raises_leaves_a_trajectory_with_its_error(
    tmp_path: Path, agent: Path, server: ChatServer
) -> None:
    (tmp_path / "fails.py").write_text("from agent import ask\nask('x')\nraise ValueError('no stock')\n")
    done = run(tmp_path, server, "fails.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: no stock"
    (root,) = [span for span in finished_spans(tmp_path / "data") if span.parent_span_id is None]
    assert (root.status_code, root.status_message) == (2, "no stock")


def test_the_sitecustomize_that_was_there_is_still_loaded(tmp_path: Path, server: ChatServer) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.loaded_by_site = True\n")
    (tmp_path / "look.py").write_text(
        "import sys, sitecustomize\nprint(sys.loaded_by_site, sitecustomize.__file__)\nprint('openai' in sys.modules)\n"
    )
    done = run(tmp_path, server, "look.py", PYTHONPATH=str(site))
    assert done.stdout.splitlines() == [f"True {site / 'sitecustomize.py'}", "False"]


def test_a_program_that_another_instrumentation_starts_is_captured(
    tmp_path: Path, agent: Path, server: ChatServer
) -> None:
    """`opentelemetry-instrument` puts a sitecustomize of its own before ours, and a program in its place: nothing was
    captured, without a word. So it is in what that program starts."""
    (tmp_path / "look.py").write_text(
        "import subprocess, sys, sitecustomize\n"
        "print('auto_instrumentation' in sitecustomize.__file__, [p for p in sys.path if 'bootstrap' in p])\n"
        "sys.exit(subprocess.run([sys.executable, 'agent.py']).returncode)\n"
    )
    nowhere = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    starter = str(Path(sys.executable).with_name("opentelemetry-instrument"))
    done = run(tmp_path, server, starter, sys.executable, "look.py", **nowhere)
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines()[0] == "True []"
    [found] = build_trajectories(finished_spans(tmp_path / "data"))
    assert len(found.calls) == 3
    assert found.incomplete == ""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_signals_reach_the_program(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(30)\n")
    child = subprocess.Popen([*ARTTRACE, "run", "waits.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert int(child.stdout.readline()) == child.pid
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == -signal.SIGTERM


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, None, "--", "no-such-program")
    assert done.returncode == 1
    assert "no-such-program" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["-S", "-I", "-E", "-uI", "-WignoreS -X dev -BE"])
def test_a_python_that_would_not_be_captured_is_refused(option: str, tmp_path: Path, agent: Path) -> None:
    done = run(tmp_path, None, "--", sys.executable, *option.split(), str(agent))
    assert done.returncode == 1
    assert f"python -{option[-1]} starts without" in done.stderr
    assert "Traceback" not in done.stderr
    script = tmp_path / "tool"
    script.write_text(f"#!{sys.executable} -{option[-1]}\nprint(1)\n")
    script.chmod(0o755)
    assert "nothing would be captured" in run(tmp_path, None, "--", str(script)).stderr


def test_options_that_leave_capture_alone_pass(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "print_argv.py").write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-u", "-X", "utf8", "-W", "ignore", "-m", "print_argv", "-S", "-I"]
    done = run(tmp_path, server, "--", *command)
    assert (done.returncode, done.stdout) == (0, "['-S', '-I']\n")


def test_a_console_script_and_a_package_are_captured(tmp_path: Path, agent: Path, server: ChatServer) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import agent; print(agent.ask('from the package'))")
    script = tmp_path / "my-agent"
    script.write_text(f"#!{sys.executable}\nimport agent\nprint(agent.ask('from the script'))\n")
    script.chmod(0o755)
    for command in ([str(script)], [sys.executable, "-m", "package"]):
        done = run(tmp_path, server, "--", *command)
        assert (done.returncode, done.stderr) == (0, "")
    spans = finished_spans(tmp_path / "data")
    assert [span.attributes.get(semconv.ENTRY) for span in spans if semconv.ENTRY in span.attributes] == [
        str(script), "package",
    ]  # fmt: skip


def test_a_program_ended_by_sigterm_is_seen_to_be_incomplete(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "long.py").write_text(f"{ASK}import time\nask('hi')\nprint('called', flush=True)\ntime.sleep(60)\n")
    env = {**os.environ, **CAPTURED, "OPENAI_BASE_URL": server.url}
    process = subprocess.Popen(
        [*ARTTRACE, "run", "--dir", str(tmp_path / "data"), "long.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    deadline = time.monotonic() + 60
    while not any(span.end_ns == 0 and span.name == "invoke_agent long" for span in read_spans(tmp_path / "data")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM  # as without capture
    process.stdout.close()
    (trajectory,) = build_trajectories(read_spans(tmp_path / "data"))
    assert trajectory.incomplete != ""
    assert len(trajectory.calls) == 1


# --- the line at the end --------------------------------------------------------------------------------------------
MANY = """
import multiprocessing, subprocess, sys
import arttrace
@arttrace.trajectory
def agent():
    ask("one")
if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        agent()
        sys.exit()
    from openai import OpenAI
    def ask(text):
        OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    url = str(OpenAI().base_url)
    agent()
    captured = {**os.environ, "ARTTRACE_CAPTURE_HTTP": "1"}
    subprocess.run([sys.executable, __file__, "child"], check=True, env=captured)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(ask, ["two", "three"])
    body = {"model": "m", "messages": [{"role": "user", "content": "by HTTP"}]}
    for path in ("chat/completions", "chat", "chat/completions", "chat"):
        httpx.post(url + path, json=body)
    with arttrace.no_capture():
        httpx.post(url + "chat/completions", json=body)
"""


def said(directory: Path, server: ChatServer, *arguments: str, **environment: str) -> str:
    env = {**os.environ, "OPENAI_API_KEY": "sk-test-key-1234", "OPENAI_BASE_URL": server.url, **environment}
    command = [*ARTTRACE, "run", "--dir", str(directory / "data"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_line_at_the_end_says_what_was_captured_and_what_was_not(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ASK + MANY)
    program = ["--", sys.executable, str(tmp_path / "agent.py")]
    route = f"other[Refunds]=policy@{server.url}"
    *_, text = said(tmp_path, server, *program, ARTTRACE_ROUTE=route).splitlines()
    calls = {span.span_id for span in finished_spans(tmp_path / "data") if span.name == "chat m" and span.end_ns}
    assert len(calls) == 4
    assert text.startswith("arttrace: ")
    assert f"4 model calls captured in {tmp_path / 'data'}; " in text
    assert "2 requests to 127.0.0.1/v1/chat/completions (ARTTRACE_CAPTURE_HTTP=1 captures them)" in text
    assert "2 requests to 127.0.0.1/v1/chat (no setting captures them" in text
    assert text.endswith("; no call matched the route other[Refunds]")
    assert not list((tmp_path / "data").glob("tally-*"))
    (tmp_path / "quiet.py").write_text(f"{ASK}ask('one')\n")
    quiet = ["--quiet", "--", sys.executable, str(tmp_path / "quiet.py")]
    assert said(tmp_path, server, *quiet, **CAPTURED) == ""
    assert said(tmp_path, server, *quiet[1:], **CAPTURED).startswith("arttrace: 1 run and 1 model call captured")


def test_a_program_that_is_not_python_is_reported_as_captured_by_a_policys_server_alone(
    server: ChatServer, tmp_path: Path
) -> None:
    """Other than what starts Python programs by its nature: a shell, `env`, `make`, `uv run`."""
    agent = tmp_path / "agent"
    agent.write_text(f"#!{shutil.which('cat')}\n")
    agent.chmod(0o755)
    text = said(tmp_path, server, "--", str(agent))
    assert text == (
        "arttrace: agent is not Python, so that its own calls are not captured, those of Python programs that it "
        "starts are. `arttrace run --policy URL -- agent` captures one whose calls go to `arttrace serve`.\n"
    )
    assert said(tmp_path, server, "--quiet", "--", str(agent)) == ""
    for starter in (["sh", "-c", "true"], ["env", "true"], [sys.executable, "-c", ""]):
        assert "is not Python" not in said(tmp_path, server, "--", *starter)


ENDED_BY_A_SIGNAL = """
import multiprocessing, os, signal
import arttrace
def work():
    arttrace.trajectory(name="handle")(ask)("one")
    arttrace.flush()
    os.kill(os.getpid(), signal.SIGTERM)  # as the workers of uvicorn end
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGTERM
"""


def test_what_a_process_captured_that_a_signal_ended_is_in_the_line(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ASK + ENDED_BY_A_SIGNAL)
    text = said(tmp_path, server, "--", sys.executable, str(tmp_path / "agent.py"), **CAPTURED)
    assert text == f"arttrace: 1 run and 1 model call captured in {tmp_path / 'data'}\n"


BIG = """
import arttrace
answer = arttrace.trajectory(ask)
for number in range(8):
    answer(os.urandom(100_000).hex())
"""


@only_root
@pytest.mark.parametrize("disk", ["size=1m", "size=1m,ro"])
def test_what_a_full_disk_did_not_take_is_not_said_to_be_captured(
    server: ChatServer, tmp_path: Path, disk: str
) -> None:
    (tmp_path / "agent.py").write_text(ASK + BIG)
    (tmp_path / "data").mkdir()
    with small_disk(tmp_path / "data", disk):
        program = ["--", sys.executable, str(tmp_path / "agent.py")]
        *_, text = said(tmp_path, server, *program, ARTTRACE_RAISE="0", **CAPTURED).splitlines()
        spans = [] if disk.endswith("ro") else finished_spans(tmp_path / "data")
    calls, runs = (sum(span.name.startswith(name) for span in spans) for name in ("chat", "invoke_agent"))
    assert 0 <= runs < 8
    assert 0 <= calls < 8
    captured = f"{runs} runs and {calls} model calls captured" if spans else "nothing was captured"
    assert text == (
        f"arttrace: {captured} in {tmp_path / 'data'}; "
        f"{8 - runs} runs and {8 - calls} model calls could not be written and are lost"
    )


def test_capture_that_is_switched_off_is_what_the_line_names(server: ChatServer, tmp_path: Path) -> None:
    text = said(tmp_path, server, "--", "-c", "import arttrace", ARTTRACE_DISABLED="1")
    assert text == "arttrace: nothing was captured: ARTTRACE_DISABLED is set\n"


def test_ls_does_not_ask_somebody_to_run_an_agent_who_just_did(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import httpx, os\n"
        "body = {'model': 'm', 'messages': [{'role': 'user', 'content': 'hi'}]}\n"
        "httpx.post(os.environ['OPENAI_BASE_URL'] + '/chat', json=body)\n"
    )
    text = said(tmp_path, server, "--", sys.executable, str(tmp_path / "agent.py"))
    assert text.startswith("arttrace: nothing was captured: ")
    listing = subprocess.run(
        [*ARTTRACE, "ls", "--dir", str(tmp_path / "data")], capture_output=True, text=True, timeout=300
    )
    assert "Run an agent first" not in listing.stderr
    assert "1 request to 127.0.0.1/v1/chat" in listing.stderr


BY_EVERY_CLIENT = """
import asyncio, contextlib, json, os
import aiohttp, boto3, botocore.config, httpx, requests
url = os.environ["OPENAI_BASE_URL"]
body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
async def asynchronously():
    async with httpx.AsyncClient() as client:
        await client.post(url + "/chat/completions", json=body)
    async with aiohttp.ClientSession() as session:
        await session.post(url + "/chat/completions", json=body)
        await session.post(url + "/models", json=body)
httpx.post(url + "/chat/completions", json=body)
requests.post(url + "/chat/completions", json=body)
asyncio.run(asynchronously())
once = botocore.config.Config(retries={"total_max_attempts": 1})
aws = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b", "config": once}
bedrock = boto3.client("bedrock-runtime", endpoint_url=url.removesuffix("/v1"), **aws)
for model in ("meta.llama:3", "arn:aws:bedrock:us-east-1:1:provisioned-model/abc"):
    with contextlib.suppress(Exception):
        bedrock.invoke_model(modelId=model, body=json.dumps({"prompt": "hi"}))
"""


def test_what_any_client_sent_to_a_model_is_named(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(BY_EVERY_CLIENT)
    shown = said(tmp_path, server, "--", sys.executable, str(tmp_path / "agent.py"))
    assert "4 requests to 127.0.0.1/v1/chat/completions (ARTTRACE_CAPTURE_HTTP=1 captures them)" in shown
    for model in ("/model/meta.llama:3", "provisioned-model/abc"):
        assert re.search(rf"1 request to 127.0.0.1\S*{model}/invoke \(no setting captures them: they are in a", shown)
    assert shown.count("not captured") == 3


WITHOUT_AN_ANSWER_OF_THEIR_OWN = """
import asyncio, contextlib, os
import httpx
from openai import AsyncOpenAI, OpenAI
import aiohttp, websocket
from websockets.sync.client import connect
client = OpenAI(max_retries=0)
socket = os.environ["OPENAI_BASE_URL"].replace("http", "ws")
async def by_aiohttp():
    async with aiohttp.ClientSession() as session, session.ws_connect(socket + "/realtime"):
        pass
for ask in (
    lambda: client.batches.create(input_file_id="f", endpoint="/v1/chat/completions", completion_window="24h"),
    *(lambda id=id: client.post(f"/threads/{id}/runs", cast_to=object, body={"assistant_id": "a"}) for id in range(30)),
    lambda: httpx.post(os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/warehouse/batches", json={}),
    lambda: connect(socket + "/prices/live"),
    lambda: client.beta.agents.sessions.create(environment={"type": "none"}, agent={"model": "m"}, input="hi"),
    *(lambda id=id: client.beta.agents.sessions.events.create(f"s{id}", events=[]) for id in range(3)),
    lambda: client.post("/agents/automations/a1/invocations", cast_to=object, body={}),
    lambda: client.beta.agents.create(name="a"),
    lambda: client.live.connect(max_retries=0).enter(),
    lambda: client.responses.connect().enter(),
    lambda: client.realtime.connect(model="r").enter(),
    lambda: asyncio.run(AsyncOpenAI().responses.connect().enter()),
    lambda: asyncio.run(by_aiohttp()),
    lambda: websocket.create_connection(socket + "/responses"),
):
    with contextlib.suppress(Exception):
        ask()
"""


def test_what_is_answered_by_other_ways_than_the_requests_own_is_named(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(WITHOUT_AN_ANSWER_OF_THEIR_OWN)
    shown = said(tmp_path, server, "--", sys.executable, str(tmp_path / "agent.py"))
    for count, path in (("1 request", "batches"), ("30 requests", "threads/*/runs")):
        assert f"{count} to 127.0.0.1/v1/{path} (no setting captures them: their answers come later" in shown
    for count, path in (
        ("1 request", "agents/sessions"),
        ("3 requests", "agents/sessions/*/events"),
        ("1 request", "agents/automations/*/invocations"),
    ):
        assert f"{count} to 127.0.0.1/v1/{path} (no setting captures them: the service runs the agent" in shown
    for count, path in (("1 request", "responses"), ("2 requests", "realtime"), ("1 request", "live/sessions")):
        assert f"{count} to 127.0.0.1/v1/{path} (no setting captures them: by WebSocket arttrace reads the" in shown
    assert "warehouse" not in shown
    assert "prices" not in shown
    assert "v1/agents (" not in shown


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("api.anthropic.com/v1/sessions/s1/events", "api.anthropic.com/v1/sessions/*/events (no setting captures them"),
        ("metrics.example.com/v1/sessions/s1/events", None),
        ("api.anthropic.com/v1/sessions/s1/archive", None),
        (
            "generativelanguage.googleapis.com/v1/interactions",
            "generativelanguage.googleapis.com/v1/interactions (no setting captures them",
        ),
        ("generativelanguage.googleapis.com/v1/interactions/i1/cancel", None),
        ("metrics.example.com/v1/interactions", None),
        ("api.mistral.ai/v1/conversations", "api.mistral.ai/v1/conversations (no setting captures them"),
        ("api.mistral.ai/v1/conversations/c1", "api.mistral.ai/v1/conversations/* (no setting captures them"),
        ("api.openai.com/v1/conversations", None),
        (
            "127.0.0.1/v1beta/models/g:batchGenerateContent",
            "127.0.0.1/v1beta/models/g:batchGenerateContent (no setting captures them",
        ),
        (
            "127.0.0.1/v1/publishers/mistralai/models/m:rawPredict",
            "127.0.0.1/v1/publishers/mistralai/models/m:rawPredict (no setting captures them",
        ),
        ("127.0.0.1/v1/publishers/anthropic/models/count-tokens:rawPredict", None),
        ("127.0.0.1/v1/models/of-a-price:predict", None),
    ],
)
def test_what_asks_a_model_is_distinguished_by_its_address_from_what_others_ask(address: str, what: str | None) -> None:
    host, slash, path = address.partition("/")
    shown = summary.passed(host, slash + path, summary.BY_NONE)
    assert shown is None if what is None else (shown or "").startswith(f"{what}: ")


MANY_ADDRESSES = """
import httpx, os
body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
url = os.environ["OPENAI_BASE_URL"]
for number in range(30):
    httpx.post(f"{url}/api/generate/{number}", json=body)
    httpx.post(f"{url}/{number}/chat/completions", json=body)
"""


def test_none_of_many_addresses_is_left_out(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(MANY_ADDRESSES)
    shown = said(tmp_path, server, "--", sys.executable, str(tmp_path / "agent.py"))
    assert sum(map(int, re.findall(r"not captured: (\d+) requests?", shown))) == 60
    assert "20 requests to other addresses (ARTTRACE_CAPTURE_HTTP=1 captures them)" in shown
    assert "20 requests to other addresses (no setting captures them" in shown


BY_A_SPAN = """
import httpx, os, sys
from opentelemetry import trace
body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat"
tracer = trace.get_tracer("a framework")
with tracer.start_as_current_span("invoke_agent boss"):
    httpx.post(url, json=body)
    with tracer.start_as_current_span("generate_content g") as span:
        httpx.post(url, json=body)
        httpx.post(url, json=body)
        span.set_attribute("gen_ai.request.model", "g")
"""


def test_what_was_recorded_from_its_span_is_not_said_to_be_lost(server: ChatServer, tmp_path: Path) -> None:
    """The span of one call whose client asked twice, behind a request of nobody's span."""
    (tmp_path / "agent.py").write_text(BY_A_SPAN)
    shown = said(tmp_path, server, "--", sys.executable, str(tmp_path / "agent.py"))
    assert "1 run and 1 model call captured" in shown
    assert "not captured: 1 request to 127.0.0.1/v1/chat" in shown


def test_a_call_that_only_a_span_tells_of_is_in_the_programs_run(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "from opentelemetry import trace\n"
        "asked = {'gen_ai.operation.name': 'generate_content', 'gen_ai.request.model': 'g'}\n"
        "with trace.get_tracer('a client').start_as_current_span('generate_content g', attributes=asked):\n"
        "    pass\n"
    )
    assert "1 run and 1 model call captured" in said(tmp_path, server, "--", sys.executable, str(tmp_path / "agent.py"))
    assert {span.name for span in finished_spans(tmp_path / "data") if span.end_ns} == {
        "invoke_agent agent",
        "generate_content g",
    }


SPAN_THAT_IS_NO_CALL = """
import arttrace
from opentelemetry import trace
@arttrace.trajectory
def answer():
    ask("hi")
with trace.get_tracer("a server").start_as_current_span("chat"):
    answer()
"""


def test_a_span_that_is_only_named_like_a_call_begins_no_run(server: ChatServer, tmp_path: Path) -> None:
    """What runs inside it is a run of its own, and there is none beside it."""
    (tmp_path / "agent.py").write_text(ASK + SPAN_THAT_IS_NO_CALL)
    shown = said(tmp_path, server, "--", sys.executable, str(tmp_path / "agent.py"), **CAPTURED)
    assert "1 run and 1 model call captured" in shown
    agents = {span.name for span in finished_spans(tmp_path / "data") if span.name.startswith("invoke_agent")}
    assert agents == {"invoke_agent answer"}


STARTS_ANOTHER = """
import subprocess, sys
import arttrace
with arttrace.trajectory(name="outer"):
    subprocess.run([sys.executable, "-c", "import arttrace; arttrace.agent(name='inner')(len)('')"], check=True)
"""


def test_a_directory_whose_name_is_no_utf_8_is_one_to_child_processes_and_the_last_line(
    server: ChatServer, tmp_path: Path
) -> None:
    directory = tmp_path / os.fsdecode(b"d\xff")
    directory.mkdir()
    text = said(directory, server, "--", sys.executable, "-c", STARTS_ANOTHER)
    assert text.startswith("arttrace: 1 run and 0 model calls captured in ")
    assert text.rstrip().endswith("; `arttrace doctor -- PROGRAM` says what is captured of a program")
    (trajectory,) = build_trajectories(read_spans(directory / "data"))
    assert {"outer", "inner"} <= {agent.name for agent in trajectory.agents}
    assert (DataDir(directory / "data").last_run() or "").startswith("1 run and 0 model calls captured in ")

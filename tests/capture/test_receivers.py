"""Several receivers: each gets every span once, with its headers, whatever the others and the store do."""

from __future__ import annotations

import logging
import math
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from otlp_receiver import OK, Receiver, Reply, receiving
from own_certificate import own_certificate

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.base.receiver import by_environment
from arttrace.capture.base.settings import Settings
from arttrace.capture.export.recorder import Recorder
from arttrace.capture.export.shipping import forwarding
from arttrace.capture.export.shipping.forwarding import waiting
from arttrace.capture.export.shipping.otlp_client import OtlpClient
from arttrace.records.record import decode_record
from arttrace.records.span import SpanRow
from arttrace.system.errors import ArttraceError
from arttrace.system.journal import list_segments, read_segment
from arttrace.system.paths import DataDir

DEADLINE_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.01)


def span(number: int) -> SpanRow:
    return SpanRow(
        trace_id=f"{number + 1:032x}", span_id=f"{number + 1:016x}", name=f"span {number}", start_ns=1, end_ns=2
    )


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "d")


@pytest.fixture
def two() -> Iterator[tuple[Receiver, Receiver]]:
    with ExitStack() as stack:
        yield stack.enter_context(receiving()), stack.enter_context(receiving())


@pytest.fixture
def recorder_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Settings], Recorder]]:
    monkeypatch.setattr("arttrace.capture.export.shipping.shipper._FIRST_WAIT_S", 0.05)
    monkeypatch.setattr("arttrace.capture.export.shipping.shipper._LONGEST_WAIT_S", 0.2)
    made: list[Recorder] = []

    def make(settings: Settings) -> Recorder:
        made.append(Recorder(settings))
        return made[-1]

    yield make
    for recorder in made:
        recorder.stop()


def stored(directory: Path) -> list[object]:
    return [decode_record(payload) for segment in list_segments(directory) for _, payload in read_segment(segment.path)]


def test_the_local_spool_and_each_receiver_get_every_span_once(
    data: DataDir, two: tuple[Receiver, Receiver], recorder_of: Callable[[Settings], Recorder]
) -> None:
    recorder = recorder_of(
        Settings(data, receivers=(arttrace.Receiver(two[0].url), arttrace.Receiver(two[1].url, compression="none")))
    )
    for number in range(5):
        recorder.record(span(number))
    assert recorder.close(DEADLINE_S)
    assert recorder.deliver(DEADLINE_S)
    for each in two:
        assert sorted(one.span_id for one in each.spans) == [span(number).span_id for number in range(5)]
    assert stored(data.spool) == [span(number) for number in range(5)]
    assert two[0].headers[0]["content-encoding"] == "gzip"
    assert "content-encoding" not in two[1].headers[0]
    assert [list_segments(directory) for _, directory in waiting(data)] == [[], []]


@pytest.mark.parametrize("trouble", ["refused", "busy", "hangs", "page", "wrong key", "gone"])
def test_what_one_receiver_does_neither_delays_nor_loses_anything_for_the_other_and_the_collector(
    data: DataDir,
    two: tuple[Receiver, Receiver],
    recorder_of: Callable[[Settings], Recorder],
    trouble: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = two
    release = threading.Event()

    def hang(_spans: list[SpanRow]) -> Reply:
        release.wait(DEADLINE_S)
        return OK

    replies = {
        "refused": lambda _spans: (400, {}, b""),
        "busy": lambda _spans: (503, {"retry-after": "300"}, b""),
        "hangs": hang,
        "page": lambda _spans: (200, {"content-type": "text/html"}, b"<html>Please log in</html>"),
        "wrong key": lambda _spans: (
            401,
            {"content-type": "application/json"},
            b'{"message": "bad key hunter2hunter2"}',
        ),
        "gone": lambda _spans: None,
    }
    bad.always = replies[trouble]
    with receiving() as collector:
        recorder = recorder_of(
            Settings(
                data,
                endpoint=collector.url,
                receivers=(
                    arttrace.Receiver(bad.url, headers={"authorization": "Bearer hunter2hunter2"}, name="bad"),
                    arttrace.Receiver(good.url),
                ),
            )
        )
        for number in range(3):
            recorder.record(span(number))
        until(lambda: len(good.ids()) == len(collector.ids()) == 3, "the others have them")
        recorder.close(DEADLINE_S)
        until(lambda: bad.requests, "the bad one was asked")
        assert recorder.deliver(1.0, patient=False) is (trouble == "refused")
        if trouble in ("page", "wrong key", "gone", "busy"):
            until(lambda: "bad" in caplog.text, "the trouble is said")
            assert sum("bad" in record.getMessage() for record in caplog.records) == 1
        assert trouble != "gone" or "does not answer (it hung up without an answer)" in caplog.text
        bad.always = lambda _spans: OK
        release.set()
        if trouble not in ("busy", "refused"):  # it asked to be left alone; it took none
            assert recorder.deliver(DEADLINE_S)
            assert bad.ids() == {span(number).span_id for number in range(3)}
        kept = stored(data.receivers / arttrace.Receiver(bad.url, name="bad").folder() / "refused")
        assert len(kept) == (3 if trouble == "refused" else 0)
        assert len(good.spans) == len(collector.spans) == 3
    assert "hunter2" not in caplog.text


def test_what_a_receiver_took_is_not_sent_again_when_it_gives_out_within_a_batch(
    data: DataDir, two: tuple[Receiver, Receiver], recorder_of: Callable[[Settings], Recorder]
) -> None:
    receiver = two[0]
    refused = span(0).span_id
    answers: list[Reply] = []

    def minds_one(spans: list[SpanRow]) -> Reply:
        if any(each.span_id == refused for each in spans):
            return 400, {}, b""
        answers.append(OK)
        return (503, {}, b"") if len(answers) == 2 else OK  # away for a moment between two halves

    receiver.always = minds_one
    recorder = recorder_of(Settings(data, receivers=(arttrace.Receiver(receiver.url),)))
    for number in range(16):
        recorder.append(span(number))
    recorder.close(DEADLINE_S)
    assert recorder.deliver(DEADLINE_S)
    assert sorted(each.span_id for each in receiver.spans) == [span(number).span_id for number in range(1, 16)]


def test_the_outbox_of_a_receiver_is_bounded_and_its_own(
    data: DataDir,
    two: tuple[Receiver, Receiver],
    recorder_of: Callable[[Settings], Recorder],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(forwarding, "MAX_OUTBOX_BYTES", 1 << 20)
    two[0].always = lambda _spans: (503, {}, b"")
    recorder = recorder_of(Settings(data, receivers=tuple(arttrace.Receiver(each.url) for each in two)))
    for number in range(30):
        recorder.append(SpanRow(**{**as_dict(span(number)), "name": "n" * 100_000}))
        recorder.flush(DEADLINE_S)
        until(lambda expected=number + 1: len(two[1].ids()) == expected, "the other has it")
        assert recorder.close(DEADLINE_S)
        assert recorder.deliver(1.0, patient=False) is False
    full = data.receivers / arttrace.Receiver(two[0].url).folder()
    assert sum(path.stat().st_size for path in full.iterdir()) <= 1 << 20
    assert len(stored(data.spool)) == 30
    assert caplog.text.count("no more are kept for it") == 1


def as_dict(row: SpanRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def test_a_receiver_that_is_none_is_said_and_left_out(
    data: DataDir,
    two: tuple[Receiver, Receiver],
    recorder_of: Callable[[Settings], Recorder],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    guard.failures.clear()
    wrong = arttrace.Receiver("me:hunter2@nowhere", headers={"x": "hunter2"})
    recorder = recorder_of(Settings(data, receivers=(wrong, arttrace.Receiver(two[0].url))))
    recorder.record(span(0))
    assert recorder.close(DEADLINE_S)
    assert recorder.deliver(DEADLINE_S)
    assert len(two[0].spans) == 1
    assert guard.failures["forwarding to a receiver"] == 1
    assert "is not a URL" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"timeout_s": -1}, "timeout_s=-1 of http://h is no number of seconds"),
        ({"timeout_s": 0}, "timeout_s=0 of"),
        ({"timeout_s": "10"}, "timeout_s='10' of"),
        ({"timeout_s": math.nan}, "timeout_s=nan of"),
        ({"compression": "zstd"}, "compression='zstd' of http://h is not supported"),
    ],
)
def test_a_limit_or_compression_that_is_none_is_said_before_anything_is_sent(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArttraceError, match=re.escape(said)):
        OtlpClient(arttrace.Receiver("http://h", **given))


@pytest.mark.parametrize("proxy", ["http://user:hun#ter2@proxy:8080", "http://user:hunter2@[proxy:8080"])
def test_what_a_proxy_that_is_none_keeps_from_a_receiver_waits(
    proxy: str,
    data: DataDir,
    recorder_of: Callable[[Settings], Recorder],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(logging.getLogger("arttrace"), "filters", [lambda _record: not time.sleep(0.2)])
    recorder = recorder_of(Settings(data, receivers=(arttrace.Receiver("http://receiver.example"),)))
    recorder.record(span(0))
    assert recorder.close(DEADLINE_S)
    assert not recorder.deliver(DEADLINE_S, patient=False), "after it was logged, which takes its time"
    [(_, directory)] = waiting(data)
    assert stored(directory) == [span(0)]
    assert "does not answer (http_proxy is no URL; percent-encode the password in it)" in caplog.text
    assert "hun" not in caplog.text


def test_nothing_of_a_receiver_shows_its_secrets() -> None:
    receiver = arttrace.Receiver("https://me:hunter2@host.example/otlp", headers={"x-key": "hunter2"})
    assert "hunter2" not in repr(receiver) + str(receiver) + receiver.folder() + receiver.target().geturl()
    assert receiver.request_headers()["authorization"] == "Basic bWU6aHVudGVyMg=="
    assert receiver.target().geturl() == "https://host.example/otlp/v1/traces"
    with pytest.raises(arttrace.system.errors.ArttraceError) as raised:
        arttrace.Receiver("http://host", headers={"x-key": "hunter2\r\nx: y"}).request_headers()
    assert "x-key" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "url", "headers"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, "http://h:4318/v1/traces", {}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h/otlp/"}, "http://h/otlp/v1/traces", {}),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h/the team/ü%C3%BC"},
            "http://h/the%20team/%C3%BC%C3%BC/v1/traces",
            {},
        ),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h/otlp"}, "http://h/otlp", {}),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h"}, "http://h/", {}),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://general",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces/x",
                "OTEL_EXPORTER_OTLP_HEADERS": "a=general",
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "Authorization=Basic%20YTpi%3D%3D, X-Two = 2 ,b=c=d",
            },
            "http://traces/x",
            {"authorization": "Basic YTpi==", "x-two": "2", "b": "c=d"},
        ),
    ],
)
def test_the_variables_of_opentelemetry_are_read_by_its_rules(
    environ: dict[str, str], url: str, headers: dict[str, str]
) -> None:
    receiver, shown = by_environment(environ)
    assert receiver is not None
    assert receiver.target().geturl() == url
    assert receiver.headers == headers
    assert shown == []


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc is not supported"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "TRACES_PROTOCOL=http/json is not supported"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "h:4318"}, "is not a URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1:4318"}, "is not a URL"),
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_what_cannot_be_honoured_is_said_and_nothing_is_sent(environ: dict[str, str], said: str) -> None:
    receiver, shown = by_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", **environ})
    assert receiver is None
    assert said in " ".join(shown)
    assert bool(shown) == bool(said)


def test_a_bad_header_or_timeout_is_said_without_its_value() -> None:
    receiver, shown = by_environment(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318",
            "OTEL_EXPORTER_OTLP_HEADERS": "hunter2,good=1,bad=a%0Ahunter2",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "soon",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "brotli",
        }
    )
    assert receiver is not None
    assert receiver.headers == {"good": "1"}
    assert (receiver.timeout_s, receiver.compression) == (10.0, "none")
    assert "2 of the headers" in " ".join(shown)
    assert "hunter2" not in " ".join(shown)


AGENT = """
import logging, os
logging.basicConfig(level=logging.WARNING)
import arttrace

if os.environ.get("OWN_PROVIDER"):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())

@arttrace.trajectory
def answer():
    return 1

answer()
"""


def run(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", AGENT],
        env={"ARTTRACE_DIR": str(folder / ".arttrace"), "PATH": "", **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


def test_a_program_ships_by_the_environment_alone(tmp_path: Path, two: tuple[Receiver, Receiver]) -> None:
    with receiving(path="/otlp/v1/traces") as otel:
        done = run(
            tmp_path,
            ARTTRACE_ENDPOINT=f"local, {two[0].url}, {two[1].url}",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"{otel.url}/otlp",
            OTEL_EXPORTER_OTLP_HEADERS="x-key=" + quote("a secret, 1=1"),
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
            OTEL_RESOURCE_ATTRIBUTES="wandb.entity=a%20team,service.name=another",
        )
        for each in (*two, otel):
            assert [one.name for one in each.spans] == ["invoke_agent answer"]
            assert each.spans[0].attributes["gen_ai.operation.name"] == "invoke_agent"
            assert each.spans[0].resource == {"wandb.entity": "a team", "service.name": "default"}
        assert otel.headers[0]["x-key"] == "a secret, 1=1"
        assert otel.headers[0]["content-encoding"] == "gzip"
    assert "ARTTRACE_OTLP" in done.stderr  # nobody said that this variable is meant for arttrace
    assert "secret" not in done.stderr
    assert len(stored(tmp_path / ".arttrace" / "spool")) >= 1


@pytest.mark.parametrize(
    ("environ", "sent"),
    [({"ARTTRACE_OTLP": "0"}, 0), ({"OWN_PROVIDER": "1"}, 0), ({"OWN_PROVIDER": "1", "ARTTRACE_OTLP": "1"}, 1)],
)
def test_variables_that_are_read_by_somebody_else_are_left_to_them(
    tmp_path: Path, two: tuple[Receiver, Receiver], environ: dict[str, str], sent: int
) -> None:
    done = run(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=two[0].url, **environ)
    assert len(two[0].spans) == sent
    assert done.stderr == ""


@pytest.mark.parametrize(
    "written", ["https://otlp.example:443", "HTTPS://OTLP.Example/v1/traces/", "https://otlp.example"]
)
def test_one_receiver_written_in_two_ways_is_one(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", written)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=secret")
    settings = Settings.resolve(endpoint="https://otlp.example")
    assert settings.otel_beside is None
    assert settings.collector is not None
    assert settings.collector.headers == {"x-api-key": "secret"}


def test_the_collectors_headers_may_come_from_the_variables(tmp_path: Path, two: tuple[Receiver, Receiver]) -> None:
    run(
        tmp_path,
        ARTTRACE_ENDPOINT=two[0].url,
        OTEL_EXPORTER_OTLP_ENDPOINT=two[0].url,
        OTEL_EXPORTER_OTLP_HEADERS="x-key=1",
    )
    assert len(two[0].spans) == 1
    assert two[0].headers[0]["x-key"] == "1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_certificate(tmp_path_factory.mktemp("tls"))


def test_a_receiver_over_tls_is_trusted_by_its_certificate_and_not_without(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    with receiving(tls=tls) as receiver:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "ARTTRACE_OTLP": "1"}
        done = run(tmp_path, **environ)
        assert "does not answer" in done.stderr
        assert "CERTIFICATE_VERIFY_FAILED" in done.stderr
        assert receiver.spans == []
        run(tmp_path, **environ, OTEL_EXPORTER_OTLP_CERTIFICATE=str(certificate[0]))
        assert len(receiver.spans) == 2  # the earlier run's too


def test_what_a_program_could_not_send_is_shipped_later_by_the_command(
    tmp_path: Path, two: tuple[Receiver, Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    two[0].always = lambda _spans: (503, {"retry-after": "1"}, b"")
    environ = {"ARTTRACE_ENDPOINT": f"local,{two[0].url}", "ARTTRACE_DIR": str(tmp_path / ".arttrace"), "PATH": ""}
    done = run(tmp_path, **environ)
    assert "answers 503" in done.stderr
    two[0].always = lambda _spans: OK
    command = [sys.executable, "-c", "from arttrace.commands import main; main()", "ship"]
    shipped = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (shipped.returncode, shipped.stdout) == (0, f"1 span delivered to {two[0].url}\n"), shipped.stderr
    assert len(two[0].spans) == 1


def test_the_command_ships_to_each_receiver_however_many_before_it_are_away(
    tmp_path: Path, two: tuple[Receiver, Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for receiver in two:
        receiver.always = lambda _spans: (503, {"retry-after": "1"}, b"")
    environ = {"ARTTRACE_ENDPOINT": f"local,{two[0].url},{two[1].url}", "ARTTRACE_DIR": str(tmp_path), "PATH": ""}
    run(tmp_path, **environ)
    two[1].always = lambda _spans: OK
    command = [sys.executable, "-c", "from arttrace.commands import main; main()", "ship"]
    with subprocess.Popen(
        command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as shipping:
        try:
            until(lambda: two[1].spans, "the second receiver has it while the first is away")
            asked = len(two[0].requests)
            until(lambda: len(two[0].requests) > asked, "the first is asked again: the second's answer has been read")
        finally:
            shipping.send_signal(signal.SIGINT)
        said, complaints = shipping.communicate(timeout=60)
    assert f"0 spans delivered to {two[0].url}\n1 span delivered to {two[1].url}\n" == said
    assert f"{two[0].url} answers 503" in complaints
    assert len(two[1].spans) == 1


def test_a_program_that_ends_asks_no_receiver_more_often_because_another_hangs(
    tmp_path: Path, two: tuple[Receiver, Receiver]
) -> None:
    asked_of_the_other = threading.Event()
    released = threading.Event()

    def hangs(_spans: list[SpanRow]) -> Reply:
        released.wait(60)
        return OK

    def is_away(_spans: list[SpanRow]) -> Reply:
        asked_of_the_other.set()
        return 401, {}, b""

    two[0].always, two[1].always = hangs, is_away
    done = run(tmp_path, ARTTRACE_ENDPOINT=f"local,{two[0].url},{two[1].url}")
    released.set()
    assert asked_of_the_other.is_set()
    assert "answers 401" in done.stderr
    assert len(two[1].requests) < 10  # five a second before


_PRESETS = {
    "Phoenix": ("http://localhost:6006/v1/traces", {"authorization": "Bearer KEY"}),
    "Logfire": ("https://logfire-us.pydantic.dev/v1/traces", {"authorization": "WRITE_TOKEN"}),
    "Grafana Cloud (Tempo)": (
        "https://otlp-gateway-REGION.grafana.net/otlp/v1/traces",
        {"authorization": "Basic BASE64(INSTANCE:TOKEN)"},
    ),
    "W&B Weave": ("https://trace.wandb.ai/agents/otel/v1/traces", {"wandb-api-key": "KEY"}),
    "LangSmith": (
        "https://api.smith.langchain.com/otel/v1/traces",
        {"x-api-key": "KEY", "langsmith-project": "PROJECT"},
    ),
    "Braintrust": (
        "https://api.braintrust.dev/otel/v1/traces",
        {"authorization": "Bearer KEY", "x-bt-parent": "project_name:PROJECT"},
    ),
    "Datadog": ("https://otlp.datadoghq.com/v1/traces", {"dd-api-key": "KEY", "dd-otlp-source": "llmobs"}),
}
"""The address and the headers that each receiver's own documentation names for traces over OTLP/HTTP."""


@pytest.mark.parametrize("name", _PRESETS)
def test_what_the_page_says_of_a_receiver_leads_where_its_own_documentation_does(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "capture" / "receivers.md").read_text()
    table = page.partition("| receiver | endpoint | headers |\n")[2].partition("\n\n")[0]
    [row] = [line for line in table.splitlines() if line.removeprefix("| ").lstrip("[").startswith(name)]
    _, _, endpoint, headers, _ = row.split("|")
    address = endpoint.split("`")[1]
    said = next(part for part in headers.split("`")[1::2] if "=" in part)
    receiver, shown = by_environment(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            "OTEL_EXPORTER_OTLP_HEADERS": said,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        }
    )
    assert receiver is not None
    assert shown == []
    assert (receiver.target().geturl(), receiver.headers) == _PRESETS[name]
    assert receiver.compression == "gzip"

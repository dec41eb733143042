"""What of the content is kept: modes, the user's mask, bounds, and that no secret reaches the spool."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from chat_server import ChatServer

import arttrace
from arttrace.capture.base.guard import failures
from arttrace.capture.base.settings import Settings
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.span import SpanRow
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories
from arttrace.wire.content import MAX_CONTENT_BYTES, secrets, stricter
from arttrace.wire.content.redaction import redacted

Spans = Callable[[], list[SpanRow]]
KEY = "sk-test-9876543210abcdef"
TOKENS = {"extra_body": {"return_token_ids": True}, "logprobs": True}
PRIVATE = "the pin is 4711"
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look", "description": PRIVATE, "parameters": {"type": "object"}}}
]


def history(text: str) -> list[Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": json.dumps({"q": text})}}
    image = {"type": "image_url", "image_url": {"url": text}}
    return [
        {"role": "system", "content": f"{text} (system)"},
        {"role": "user", "content": [{"type": "text", "text": text}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": text},
    ]


def client_of(server: ChatServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0)


def converse(server: ChatServer, **options: Any) -> None:
    """A run whose every content attribute holds something private."""

    @arttrace.tool
    def look(text: str) -> list[str]:
        return [text]

    @arttrace.trajectory(metadata={"team": "red"}, **options)
    def agent(text: str) -> dict[str, str]:
        with client_of(server) as client:
            client.chat.completions.create(
                model="m",
                messages=history(text),
                tools=TOOLS,
                **TOKENS,
            )
        look(text)
        return {"said": text}

    agent(PRIVATE)


def spool_bytes(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (root / "data").rglob("*") if path.is_file())


def by_name(spans: list[SpanRow]) -> dict[str, SpanRow]:
    return {span.name: span for span in spans}


def init(tmp_path: Path, **options: Any) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", **options)


# --- modes -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["init", "environment", "decorator"])
def test_redacted_keeps_the_structure_and_no_text(
    how: str, server: ChatServer, spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("ARTTRACE_CAPTURE_CONTENT", "Redacted")
    init(tmp_path, capture_content="redacted" if how == "init" else None)
    converse(server, capture_content="redacted" if how == "decorator" else None)
    rows = by_name(spans())
    assert PRIVATE.encode() not in spool_bytes(tmp_path)
    call = rows["chat m"].attributes
    system, user, asked, shown = json.loads(call[semconv.INPUT_MESSAGES])
    assert [message["role"] for message in (system, user, asked, shown)] == ["system", "user", "assistant", "tool"]
    assert system["parts"] == [{"type": "text", "content": f"[redacted, {len(PRIVATE) + 9} characters]"}]
    assert [part["type"] for part in user["parts"]] == ["text", "other"]
    assert user["parts"][1]["value"]["type"] == "image_url"
    assert (asked["parts"][0]["name"], asked["parts"][0]["id"]) == ("look", "call_1")
    assert shown["parts"][0]["id"] == "call_1"
    (answer,) = json.loads(call[semconv.OUTPUT_MESSAGES])
    assert (answer["role"], answer["finish_reason"]) == ("assistant", "tool_calls")
    assert json.loads(call[semconv.TOOL_DEFINITIONS]) == [{"type": "function", "function": {"name": "look"}}]
    assert not [
        name for name in call if name.startswith(("arttrace.token_ids", "arttrace.logprobs", "arttrace.prompt"))
    ]
    assert {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOKEN_IDS} <= set(call[semconv.MASKED])
    assert (call[semconv.USAGE_INPUT_TOKENS], call[semconv.RESPONSE_ID]) == (7, "c1")
    root = rows["invoke_agent agent"].attributes
    assert list(json.loads(root[semconv.ENTRY_ARGUMENTS])) == ["text"]
    assert root[semconv.METADATA] == '{"team":"red"}'
    (trajectory,) = build_trajectories(list(rows.values()))
    assert trajectory.incomplete == ""


def test_off_keeps_names_counts_and_metadata_only(server: ChatServer, spans: Spans, tmp_path: Path) -> None:
    init(tmp_path, capture_content="off")
    converse(server)
    rows = by_name(spans())
    assert PRIVATE.encode() not in spool_bytes(tmp_path)
    content = {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS, semconv.TOKEN_IDS}
    assert not content & set(rows["chat m"].attributes)
    assert rows["chat m"].attributes[semconv.USAGE_OUTPUT_TOKENS] == 5
    root = rows["invoke_agent agent"].attributes
    assert semconv.ENTRY_ARGUMENTS not in root
    assert root[semconv.METADATA] == '{"team":"red"}'


def group_of(spans: Spans, question: str, **options: Any) -> str:
    @arttrace.trajectory(group=lambda question: f"asks {question}", **options)
    def agent(question: str) -> None: ...

    agent(question)
    return str(spans()[-1].attributes[semconv.GROUP])


@pytest.mark.parametrize("mode", ["redacted", "off"])
def test_the_key_that_a_callable_made_of_content_is_a_hash_without_content(
    mode: str, spans: Spans, tmp_path: Path
) -> None:
    init(tmp_path, capture_content=mode)
    keys = [group_of(spans, question) for question in (PRIVATE, PRIVATE, "another")]
    assert keys[0] == keys[1] != keys[2]
    assert PRIVATE.encode() not in spool_bytes(tmp_path)

    @arttrace.trajectory(group="refunds")  # a name in the code is none of the content
    def named() -> None: ...

    named()
    assert spans()[-1].attributes[semconv.GROUP] == "refunds"


def test_the_key_that_a_callable_made_goes_through_the_mask_and_stays_distinct(
    spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE")

    def mask(value: Any, *, kind: str) -> Any:
        if kind == "arguments":
            return {}
        if kind == "group":
            if "another" in value:
                raise ValueError(value)
            return value.replace(PRIVATE, "***").replace("more", "***")
        return value

    init(tmp_path, mask=mask)
    keys = [group_of(spans, question) for question in (PRIVATE, "more", "public", "another")]
    assert (keys[0].partition("#")[0], keys[1].partition("#")[0]) == ("asks *** ", "asks *** ")
    assert keys[2] == "asks public"
    assert keys[3].startswith("#")
    assert len(set(keys)) == 4
    assert PRIVATE.encode() not in spool_bytes(tmp_path)


def test_a_key_that_a_callable_made_holds_no_secret(spans: Spans, tmp_path: Path) -> None:
    init(tmp_path)
    assert KEY not in group_of(spans, f"use api_key={KEY}")


def test_code_narrows_what_the_settings_allow_and_never_widens_it(
    server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    assert [stricter("redacted", other) for other in (None, "full", "redacted", "off")] == [
        "redacted", "redacted", "redacted", "off",
    ]  # fmt: skip
    with arttrace.trajectory(name="outer"), client_of(server) as client:
        client.chat.completions.create(model="seen", messages=[{"role": "user", "content": "open"}])
        with arttrace.agent(name="inner", capture_content="off"):
            client.chat.completions.create(model="hidden", messages=[{"role": "user", "content": "closed"}])
    init(tmp_path, capture_content="off")
    converse(server, capture_content="full")
    rows = by_name(spans())
    assert semconv.INPUT_MESSAGES in rows["chat seen"].attributes
    assert semconv.INPUT_MESSAGES not in rows["chat hidden"].attributes
    assert semconv.INPUT_MESSAGES not in rows["chat m"].attributes


def test_a_word_that_is_no_mode_turns_content_off(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("ARTTRACE_CAPTURE_CONTENT", "metadata")
    assert Settings.resolve(dir="x").capture_content == "off"
    assert "ARTTRACE_CAPTURE_CONTENT='metadata'" in caplog.text


# --- the mask --------------------------------------------------------------------------------------------------
def test_a_mask_sees_structure_and_what_it_changes_is_named_and_not_trained_on(
    server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    def mask(value: Any, *, kind: str) -> Any:
        seen.setdefault(kind, value)
        return json.loads(json.dumps(value).replace(PRIVATE, "[pin]")) if kind != "output_messages" else value

    init(tmp_path, mask=mask)
    converse(server)
    rows = by_name(spans())
    call, root = rows["chat m"].attributes, rows["invoke_agent agent"].attributes
    kinds = {"input_messages", "output_messages", "tool_definitions", "arguments", "result", "metadata", "request"}
    assert set(seen) == kinds
    assert json.loads(call[semconv.INPUT_MESSAGES])[3]["parts"][0]["response"] == "[pin]"
    assert root[semconv.ENTRY_ARGUMENTS] == '{"text":"[pin]"}'
    assert root[semconv.ENTRY_RESULT] == '{"said":"[pin]"}'
    assert not [
        name for name in call if name.startswith(("arttrace.token_ids", "arttrace.logprobs", "arttrace.prompt"))
    ]
    assert semconv.INPUT_MESSAGES in call[semconv.MASKED]
    assert root[semconv.MASKED] == [semconv.ENTRY_ARGUMENTS, semconv.ENTRY_RESULT]


def test_a_mask_that_changes_nothing_leaves_every_byte_and_the_tokens(
    server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    converse(server)
    init(tmp_path, mask=lambda value, *, kind: value)
    converse(server)
    one, other = [span.attributes for span in spans() if span.name == "chat m"]
    same = (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS, semconv.TOKEN_IDS)
    assert [one[name] for name in same] == [other[name] for name in same]
    assert semconv.MASKED not in other


def in_place(value: Any, *, kind: str) -> Any:
    if kind == "input_messages":
        value.clear()
    return value


def test_a_mask_that_changes_the_value_in_place_is_noticed(server: ChatServer, spans: Spans, tmp_path: Path) -> None:
    init(tmp_path, mask=in_place)
    converse(server)
    call = by_name(spans())["chat m"].attributes
    assert call[semconv.INPUT_MESSAGES] == "[]"
    assert semconv.TOKEN_IDS not in call


def raises(value: Any, *, kind: str) -> Any:
    raise SystemExit(PRIVATE)


def returns_nothing(value: Any, *, kind: str) -> Any:
    return None


def returns_what_is_no_json(value: Any, *, kind: str) -> Any:
    return object()


def returns_too_much(value: Any, *, kind: str) -> Any:
    return "x" * (MAX_CONTENT_BYTES + 1)


@pytest.mark.parametrize("mask", [raises, returns_nothing, returns_what_is_no_json, returns_too_much])
def test_a_mask_that_fails_costs_the_content_and_not_the_span(
    mask: Any, server: ChatServer, spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    failures.clear()  # so that it is reported
    monkeypatch.delenv("ARTTRACE_RAISE")
    init(tmp_path, mask=mask)
    before = failures["the mask"]
    converse(server)
    rows = by_name(spans())
    assert "the mask failed (" in caplog.text
    assert PRIVATE not in caplog.text
    assert set(rows) == {"chat m", "execute_tool look", "invoke_agent agent"}
    assert not {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOKEN_IDS} & set(rows["chat m"].attributes)
    assert semconv.ENTRY_ARGUMENTS not in rows["invoke_agent agent"].attributes
    assert rows["chat m"].attributes[semconv.USAGE_OUTPUT_TOKENS] == 5
    assert failures["the mask"] > before
    assert PRIVATE.encode() not in spool_bytes(tmp_path)


def test_errors_go_through_mode_and_mask(spans: Spans, tmp_path: Path) -> None:
    def fail(**options: Any) -> str:
        with pytest.raises(ValueError, match="pin"), arttrace.trajectory(**options):
            raise ValueError(PRIVATE)
        return spans()[-1].status_message

    assert fail() == PRIVATE
    assert fail(capture_content="redacted") == f"[redacted, {len(PRIVATE)} characters]"
    assert fail(capture_content="off") == ""
    init(tmp_path, mask=lambda value, *, kind: value.replace("4711", "?"))
    assert fail() == "the pin is ?"
    assert spans()[-1].attributes[semconv.ERROR_TYPE] == "ValueError"


# --- secrets ---------------------------------------------------------------------------------------------------
def test_no_key_that_was_sent_reaches_the_spool(
    server: ChatServer, records: Callable[[], list[Record]], tmp_path: Path
) -> None:
    server.failures.append((401, json.dumps({"error": {"message": f"wrong key: {KEY}"}}).encode()))
    azure = "0123456789abcdef0123456789abcdef"

    @arttrace.tool
    def environment() -> dict[str, str]:
        return {"OPENAI_KEY_COPY": KEY}

    @arttrace.trajectory(metadata={"note": f"key {KEY}"})
    def agent(headers: dict[str, str], api_key: str, url: str) -> str:
        with client_of(server) as client:
            with pytest.raises(openai.AuthenticationError):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"my key is {KEY}"}], **TOKENS
            )
        with openai.AzureOpenAI(base_url=server.url, api_key=azure, api_version="1") as other:
            other.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        environment()
        raise RuntimeError(f"GET {url} with Authorization: Bearer {KEY} failed")

    with pytest.raises(RuntimeError):
        agent(
            {"Authorization": "Basic dXNlcjpwYXNz"}, "short-one", "https://joe:pa55word@host/v1?token=t0ken&sig=ab%20c"
        )
    rows = [record for record in records() if isinstance(record, SpanRow)]
    spool = spool_bytes(tmp_path)
    for secret in (KEY, azure, "dXNlcjpwYXNz", "short-one", "pa55word", "t0ken", "ab%20c"):
        assert secret.encode() not in spool, secret
    root = rows[-1]
    assert root.status_message.startswith("GET https://[secret]@host/v1?token=[secret]&sig=[secret] with Authorization")
    (quoting,) = [row for row in rows if "my key is" in str(row.attributes.get(semconv.INPUT_MESSAGES))]
    assert "my key is [secret]" in quoting.attributes[semconv.INPUT_MESSAGES]
    assert semconv.TOKEN_IDS not in quoting.attributes  # they would spell it


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"openai_api_key":"abc","n":1}', '{"openai_api_key":"[secret]","n":1}'),
        ('{"body":"{\\"password\\":\\"a\\\\\\"b\\"}"}', '{"body":"{\\"password\\":\\"[secret]\\"}"}'),
        ("{'client_secret': 'abc'}", "{'client_secret': '[secret]'}"),
        ('{"argv":["--api-key","abc","--n","3"]}', '{"argv":["--api-key","[secret]","--n","3"]}'),
        ("run --auth-token=abc now", "run --auth-token=[secret] now"),
        ("?a=1&api_key=abc&b=2", "?a=1&api_key=[secret]&b=2"),
        ("Authorization: Bearer abcdefgh12", "Authorization: Bearer [secret]"),
        ("x-api-key: abcdefgh12", "x-api-key: [secret]"),
        ("key sk-proj-abcdefgh1234 is wrong", "key [secret] is wrong"),
        ('{"max_tokens":12,"token_ids":[1]}', '{"max_tokens":12,"token_ids":[1]}'),
        ("the bearer of good-news, sk-words-without-digits", "the bearer of good-news, sk-words-without-digits"),
        ("see https://host:8000/a@b", "see https://host:8000/a@b"),
        ("the password is required", "the password is required"),
        ("login failed: token=abcdefgh12 rejected", "login failed: token=[secret] rejected"),
        ("Unexpected token: functionName", "Unexpected token: functionName"),
        ('{"body":"{\\"github_token\\":\\"abc\\"}"}', '{"body":"{\\"github_token\\":\\"[secret]\\"}"}'),
        ('{"body":"{\\"password\\":4711}"}', '{"body":"{\\"password\\":\\"[secret]\\"}"}'),
        ("run --token abc", "run --token [secret]"),
        ('"{\\"password\\": \\"ab"', '"{\\"password\\": \\"[secret]"'),
        ('{"args":"{\\"password\\": \\"ab","n":"x"}', '{"args":"{\\"password\\": \\"[secret]","n":"x"}'),
        ("<a:password type='t'>abc</a:password>", "<a:password type='t'>[secret]</a:password>"),
        ("https://host/a?X-Amz-Signature=abc&b=2", "https://host/a?X-Amz-Signature=[secret]&b=2"),
        ('{"next_page_token":"abc","eosToken":"</s>"}', '{"next_page_token":"abc","eosToken":"</s>"}'),
        ("Conf(api_key='abc-def gh', n=1)", "Conf(api_key='[secret]', n=1)"),
        ('{"c":"Conf(api_key=\\"abcdefgh\\", n=1)"}', '{"c":"Conf(api_key=\\"[secret]\\", n=1)"}'),
        ('{"c":"Conf(auth_token=\'abcdefgh\')"}', '{"c":"Conf(auth_token=\'[secret]\')"}'),
        ('  password: "hunter2"\n  user: "bob"', '  password: "[secret]"\n  user: "bob"'),
        ("Conf(token='abcdefgh12')", "Conf(token='[secret]')"),
        ("Unexpected token: 'functionName' at 12, eos_token='</s>', pwd=''",) * 2,
    ],
)  # fmt: skip
def test_secrets_by_name_and_form(text: str, expected: str) -> None:
    assert secrets.scrubbed(text) == expected
    assert secrets.scrubbed(expected) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"token": "abc", "n": 1}, {"token": "[secret]", "n": 1}),
        ({"githubToken": "abc", "X-Auth-Token": "d"}, {"githubToken": "[secret]", "X-Auth-Token": "[secret]"}),
        ({"password": 4711, "has_password": True}, {"password": "[secret]", "has_password": True}),
        ({"api_keys": ["a", ["b"]]}, {"api_keys": ["[secret]", ["[secret]"]]}),
        ({"credentials": {"user": "u", "pass": ""}}, {"credentials": {"user": "[secret]", "pass": ""}}),
        ({"headers": [{"name": "x-api-key", "value": "a"}]}, {"headers": [{"name": "x-api-key", "value": "[secret]"}]}),
        ({"key": "password", "value": 12}, {"key": "password", "value": "[secret]"}),
        *(
            (value, value)
            for value in (
                {"token": 17, "tokens": ["a"], "max_tokens": 5, "next_page_token": "abc", "token_type": "bearer"},
                {"eos_token": "</s>", "pageToken": "p", "secretary": "Ann", "fields": ["password", "name"]},
            )
        ),
    ],
)
def test_secrets_by_name_in_structures(value: Any, expected: Any) -> None:
    assert secrets.without_named(value) == expected


def test_the_search_for_secrets_is_no_work_without_end() -> None:
    for text in ("a." * 500_000, "a-" * 500_000, "token_" * 100_000, "\\" * 50_000, "<token_" * 100_000):
        assert secrets.scrubbed(text) == text


def test_what_was_taken_out_of_a_run_is_in_none_of_its_errors(spans: Spans, tmp_path: Path) -> None:
    """A tool that quotes its arguments: in its result, in what it raises, and in what its callers raise on."""

    @arttrace.tool
    def look_up(token: str, name: str) -> str:
        return f"{name} has {token}"

    @arttrace.tool
    def log_in(password: str, pin: int, name: str, note: str) -> None:
        raise PermissionError(f"{name} ({note[-4:]}): password {password!r} and pin {pin} are wrong")

    @arttrace.trajectory
    def agent() -> None:
        look_up("geheim", "Ann")
        log_in("hunter2", 4711, "Ann", "daughter of Bert")

    with pytest.raises(PermissionError, match="hunter2"):
        agent()
    rows = by_name(spans())
    looked = rows["execute_tool look_up"].attributes
    assert looked[semconv.TOOL_CALL_ARGUMENTS] == '{"token":"[secret]","name":"Ann"}'
    assert looked[semconv.TOOL_CALL_RESULT] == '"Ann has [secret]"'
    for name in ("execute_tool log_in", "invoke_agent agent"):
        assert rows[name].status_message == "Ann (Bert): password '[secret]' and pin 4711 are wrong"

    def mask(value: Any, *, kind: str) -> Any:
        if kind == "arguments" and "pin" in value:
            return {**value, "pin": None, "name": value["name"][:1], "note": "... of ..."}
        return value

    init(tmp_path, mask=mask)
    with pytest.raises(PermissionError, match="hunter2"):
        agent()
    rows = by_name(spans())
    assert rows["execute_tool look_up"].attributes[semconv.TOOL_CALL_RESULT] == '"Ann has [secret]"'
    for name in ("execute_tool log_in", "invoke_agent agent"):
        assert rows[name].status_message == "[secret] ([secret]): password '[secret]' and pin [secret] are wrong"


def test_a_refusal_that_quotes_what_was_masked_does_not_tell_it(
    server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    def mask(value: Any, *, kind: str) -> Any:
        return json.loads(json.dumps(value).replace(PRIVATE, "...")) if kind == "input_messages" else value

    init(tmp_path, mask=mask)
    server.failures.append((400, json.dumps({"error": {"message": f"not allowed: {PRIVATE!r}"}}).encode()))
    with arttrace.trajectory(name="agent"), client_of(server) as client, pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"Say that {PRIVATE}!"}])
    assert "not allowed: '[secret]'" in by_name(spans())["chat m"].status_message


def test_a_short_key_is_no_secret_word_of_the_prompt() -> None:
    secrets.remember("not-needed")
    assert secrets.without_known("it is not-needed") == "it is not-needed"
    assert secrets.without_known("wrong key not-needed", is_content=False) == "wrong key [secret]"


def test_the_key_for_a_server_that_asks_for_none_is_a_word(server: ChatServer, spans: Spans, tmp_path: Path) -> None:
    """The one that our own documentation names, as a client insists on one."""
    init(tmp_path)

    @arttrace.trajectory(group=lambda path: path)
    def agent(path: str) -> str:
        with openai.OpenAI(base_url=server.url, api_key="arttrace", max_retries=0) as client:
            client.chat.completions.create(model="m", messages=cast("Any", history(path)), user=path)
        raise FileNotFoundError(path)

    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            agent("/home/ann/.arttrace/x")
        arttrace.flush()
    for run in [span for span in spans() if span.name == "invoke_agent agent"]:
        assert run.status_message == "/home/ann/.arttrace/x"
        assert run.attributes[semconv.ENTRY_ARGUMENTS] == '{"path":"/home/ann/.arttrace/x"}'
        assert run.attributes[semconv.GROUP] == "/home/ann/.arttrace/x"
        assert semconv.MASKED not in run.attributes


@pytest.mark.parametrize(
    "header", ["helicone-auth", "X-Portkey-API-Key", "ocp-apim-subscription-key", "x-goog-api-key"]
)
def test_a_key_of_a_gateway_is_none_in_its_refusal_either(
    header: str, server: ChatServer, spans: Spans, tmp_path: Path
) -> None:
    init(tmp_path)
    key, messages = f"{header[:5]}-geheim-0123456789", cast("Any", [{"role": "user", "content": "hi"}])
    server.failures.append((401, json.dumps({"error": {"message": f"nobody has {key}"}}).encode()))
    with arttrace.trajectory(name="agent"), client_of(server) as client, pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model="m", messages=messages, extra_headers={header: key})
    assert "nobody has [secret]" in by_name(spans())["chat m"].status_message


def test_settings_show_no_key(tmp_path: Path) -> None:
    assert KEY not in repr(Settings(DataDir(tmp_path), api_key=KEY))


@pytest.mark.parametrize("kind", ["input_messages", "output_messages", "system_instructions", "tool_definitions"])
@pytest.mark.parametrize(
    "value",
    [[{"role": "user", "content": PRIVATE, "note": PRIVATE}], [PRIVATE], PRIVATE, {"text": PRIVATE}, [[PRIVATE]]],
)
def test_redacted_keeps_no_text_of_other_people_s_shapes(kind: str, value: Any) -> None:
    assert PRIVATE not in json.dumps(redacted(value, kind))


def test_a_text_that_comes_with_every_call_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"return_token_ids":true,"password":"hunter22hunter"}'
    found = secrets.scrubbed(text)
    assert "hunter22" not in found

    def search(*_: object, **__: object) -> str:
        raise AssertionError("it is searched again")

    monkeypatch.setattr("arttrace.wire.content.secrets.re.sub", search)
    assert secrets.scrubbed(text) == found

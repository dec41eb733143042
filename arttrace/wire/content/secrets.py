"""Removes secrets from what is recorded: keys that this process has sent, and text that looks like a key.

A key that went out in a header is replaced wherever it turns up. By its form or its name (`api_key`, `token`,
`Bearer ...`) a secret is found in errors, arguments, results and metadata; messages are not searched that way, as a
policy is trained on their exact text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from arttrace.wire.exchange import picked

SECRET = "[secret]"
NO_KEY = "arttrace"
"""The key for clients that insist on one where the server asks for none: a word, and no secret."""
# Those of gateways and clouds too: helicone-auth, x-portkey-api-key, ocp-apim-subscription-key, x-amz-security-token.
_lets_in = re.compile(
    r"(?:api-?key|authorization|cookie|(?:auth|subscription)-key|-auth|-secret"
    r"|(?:access|api|auth|security|session)-token)\Z"
).search
_LOGINS = ("headers", "extra_headers", "authConfig", "apiAuth")
_MAX_DEPTH_OF_A_TOOL = 64  # none is so deep; what is made so would end in a RecursionError
_MIN_LENGTH = 8
_MIN_LENGTH_IN_CONTENT = 16  # "not-needed" is a key to some servers, and a word to everybody
_MAX_KNOWN = 64
_MAX_KEPT = 1000

_known: dict[str, None] = {}

# Tokens that are none of a key's kind: of a text, of a page.
_NO_SECRETS = (
    "eos", "bos", "pad", "unk", "sep", "cls", "mask", "special", "stop", "start", "end", "image", "first", "last",
    "per", "next", "page", "previous", "continuation", "sync", "cancellation",
)  # fmt: skip
_NO_SECRET = "".join(rf"(?<!{word}token)(?<!{word}[_-]token)" for word in _NO_SECRETS)
# The ends of names. A pattern that began with the rest of the name would look for it at every word of a long text.
_OF_KEYS = ("access", "private", "signing", "encryption")
_OF_TOKENS = ("access", "refresh", "auth", "bearer", "id", "session")
_WORDS = (
    r"(?:api[_-]?key|authorization|pass(?:word|wd|phrase|code)|pwd|secret(?:[_-]?key)?|jwt|credential|cookie"
    rf"|(?:{'|'.join(_OF_KEYS)})[_-]?key|(?:{'|'.join(_OF_TOKENS)})[_-]?token)s?"
)
_TOKEN = rf"token{_NO_SECRET}"
_NAME = rf"(?:{_WORDS}|{_TOKEN})"
_KEYS_BEGIN = (
    *("sk", "pk", "rk", "gsk", "xai", "hf", "gho", "ghp", "ghs", "ghu", "glpat"),
    *("xoxa", "xoxb", "xoxp", "xoxr", "xoxs"),
)
_KEYS = rf"(?:{'|'.join(_KEYS_BEGIN)})[-_](?=[\w-]{{0,200}}\d)[\w-]{{12,}}"
_UNQUOTED = r"[^\s,;\"'\[\]{}]"
_IN_A_NAME = ("key", "authorization", "pass", "pwd", "secret", "jwt", "credential", "cookie", "token")
_OF_NAMES: tuple[tuple[str, str], ...] = (
    # "api_key": "...", in JSON, in JSON inside JSON and in a repr; also where the text was cut within the value
    (
        rf"({_NAME}(\\*[\"'])\s*:\s*\2)(?!\[secret\])(?:.{{1,100000}}?(?<!\\)(?=\2)|(?:[^\"\\]|\\.)+\\?(?=\"|\Z))",
        rf"\1{SECRET}",
    ),
    # api_key="...", as a repr has it, and password: "...", also in JSON and where the text was cut within the value
    (rf"({_WORDS}\s*[:=]\s*(\\*[\"']))(?!\[secret\])[^\"'\\]{{6,}}", rf"\1{SECRET}"),
    (rf"({_TOKEN}\s*[:=]\s*(\\*[\"']))(?!\[secret\])(?=[^\"'\\]{{0,200}}\d)[^\"'\\\s]{{8,}}", rf"\1{SECRET}"),
    # <password>...</password>
    (rf"(<[\w:.-]{{0,40}}?{_NAME}(?:\s[^<>]{{0,1000}})?>)(?!\[secret\])[^<>]+", rf"\1{SECRET}"),
    (rf"({_WORDS}(\\*[\"'])\s*:\s*)-?\d[\d.]*", rf"\1\2{SECRET}\2"),
    # --api-key ..., --api-key=..., ["--api-key", "..."], api_key=...
    (rf"((?<![\w-])--?[\w.-]{{0,40}}?{_NAME}(?:\"\s*,\s*\"|=|\s+))(?!\[secret\])[^\s\"]+", rf"\1{SECRET}"),
    (rf"({_WORDS}\s*[:=]\s*(?:bearer\s+|basic\s+)?)(?!\[secret\]){_UNQUOTED}{{8,}}", rf"\1{SECRET}"),
    (rf"({_TOKEN}\s*[:=]\s*)(?!\[secret\])(?={_UNQUOTED}{{0,200}}\d){_UNQUOTED}{{8,}}", rf"\1{SECRET}"),
)
_BEGIN_WITH_A_NAME = tuple(f"({name}" for name in (_NAME, _WORDS, _TOKEN))
"""What patterns begin with that are tried only where a name may begin: at every letter of a long text it takes most of
a second for each million of them."""
_BEFORE = {word: 1 + max(map(len, before)) for word, before in (("key", _OF_KEYS), ("token", _OF_TOKENS))}
"""How much of a name may stand before such a word of it; the other words of _IN_A_NAME are beginnings."""
_name = re.compile(_NAME, re.IGNORECASE)
_OF_FORM: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # a text that one of these is in is searched
    (("?", "&"), rf"([?&](?:[\w.-]{{0,40}}?(?:{_NAME}|signature)|key|sig|code)=)[^&\s\"'<>]+", rf"\1{SECRET}"),
    (("://",), r"(://)[^/\s:@\"']{1,1000}:[^/\s@\"']{1,1000}@", rf"\1{SECRET}@"),
    (("bearer",), r"(\bbearer\s+)(?=\S*\d)[\w.~+/=-]{8,}", rf"\1{SECRET}"),
    (
        (*(f"{begin}{end}" for begin in _KEYS_BEGIN for end in "-_"), "akia", "aiza", "eyj"),
        rf"\b(?:{_KEYS}|AKIA[A-Z0-9]{{16}}|AIza[\w-]{{30,}}|eyJ[\w-]{{8,1000}}+\.[\w-]{{8,}}\.[\w-]*)",
        SECRET,
    ),
)
_is_credential = re.compile(
    r"key|auth(?!enticate\Z|ority)|token|secret|pass|pwd|cookie|credential|session|signature|jwt|assertion",
    re.IGNORECASE,
).search
_is_word = re.compile(rf"{_WORDS}\Z", re.IGNORECASE).search
_is_token = re.compile(rf"{_TOKEN}\Z", re.IGNORECASE).search


@lru_cache(maxsize=1024)
def is_of_a_key(header: str | bytes) -> bool:
    """Whether a header of this name holds what its sender is let in by."""
    name = header if isinstance(header, str) else header.decode("latin-1")
    return _lets_in(name.lower()) is not None


def remember_headers(headers: Mapping[str, str]) -> None:
    """Note the secrets among the headers (names in lower case, or a mapping that minds no case) of a request. AWS's
    signatures are none: each is of one request."""
    raw = getattr(headers, "raw", None)
    names = [name for name, _ in raw] if isinstance(raw, list) else headers
    found = {name if isinstance(name, str) else name.decode("latin-1") for name in names if is_of_a_key(name)}
    for value in picked(headers, tuple(sorted(map(str.lower, found)))).values():
        if not value.startswith("AWS4-"):
            remember(value.rsplit(" ", 1)[-1])


def remember_query(url: str) -> None:
    """Note the secrets in the query of a request's address: Google's servers take a key there."""
    if "?" in url:
        for name, value in parse_qsl(urlsplit(url).query):
            if name == "key" or is_of_a_key(name):
                remember(value)


def remember(secret: str) -> None:
    """Note one secret, to be replaced from now on wherever it turns up."""
    if secret not in _known and len(secret) >= _MIN_LENGTH and secret != NO_KEY:
        _known[secret] = None
        while len(_known) > _MAX_KNOWN:
            _known.pop(next(iter(_known)), None)


def without_known(text: str, *, is_content: bool = True) -> str:
    """`text` without the keys that went out. Short ones, which may be words, stay in what `is_content`."""
    for secret in tuple(_known):
        if secret in text and not (is_content and may_be_a_word(secret)):
            text = text.replace(secret, SECRET)
    return text


def scrubbed(text: str) -> str:
    """`text` without the keys that went out, and without what is named or written like a secret."""
    text = without_known(text, is_content=False)
    return _kept_scrubbed(text) if len(text) <= _MAX_KEPT else _without_form(text)


def _without_form(text: str) -> str:
    lowered, begins = _lowered(text), None
    for needed, pattern, replacement in (*_OF_FORM, *((_IN_A_NAME, *of_names) for of_names in _OF_NAMES)):
        if not any(word in lowered for word in needed):
            continue
        made = re.compile(pattern, re.IGNORECASE | re.DOTALL)  # re keeps them
        if pattern.startswith(_BEGIN_WITH_A_NAME):
            begins = _begins_of_names(text, lowered) if begins is None else begins
            found = _replaced(made, replacement, text, begins)
        else:
            found = made.sub(replacement, text)
        if found != text:
            text, lowered, begins = found, _lowered(found), None
    return text


def _replaced(pattern: re.Pattern[str], replacement: str, text: str, begins: list[int]) -> str:
    """As pattern.sub, of a pattern that matches nowhere else than at these places."""
    kept: list[str] = []
    done = 0
    for begin in begins:
        if begin >= done and (matched := pattern.match(text, begin)) is not None:
            kept += text[done:begin], matched.expand(replacement)
            done = matched.end()
    return "".join((*kept, text[done:]))


def _begins_of_names(text: str, lowered: str) -> list[int]:
    """Where names that secrets have may begin, in order."""
    begins = set()
    for word in _IN_A_NAME:
        before = _BEFORE.get(word, 0)
        at = lowered.find(word)
        while at >= 0:
            if before == 0:
                begins.add(at)
            else:
                begin, end = max(at - before, 0), at + len(word)
                while (name := _name.search(text, begin, end)) is not None:
                    begins.add(name.start())
                    begin = name.start() + 1
            at = lowered.find(word, at + 1)
    return sorted(begins)


def _lowered(text: str) -> str:
    """`text` in lower case, each letter in its place and as a pattern takes it that minds no case."""
    if not text.isascii():
        for letter, alike in (("\u017f", "s"), ("\u0131", "i"), ("\u0130", "i")):
            text = text.replace(letter, alike)
    return text.lower()


# What is asked for beside the messages is the same in most calls of an agent, and a search costs more than decoding.
_kept_scrubbed = lru_cache(maxsize=256)(_without_form)


def may_name_one(text: str) -> bool:
    """Whether a text may have a name in it that secrets have: most have none, and are not searched for any."""
    lowered = _lowered(text)
    return any(word in lowered for word in _IN_A_NAME)


def without_named(value: Any) -> Any:
    """A JSON value without those that are named like secrets, be they texts, numbers or whole objects."""
    if isinstance(value, list):
        return [without_named(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _hidden(item) if _is_named(key, item) else without_named(item) for key, item in value.items()}
    for said in ("name", "key", "header"):  # {"name": "X-Auth-Token", "value": "..."}
        name, item = value.get(said), value.get("value")
        if isinstance(name, str) and item is not None and _is_named(name, item):
            kept["value"] = _hidden(item)
    return kept


def without_logins(tool: Any, depth: int = 0) -> Any:
    """The definition of a provider's own tool without what servers are let in by, as that of an MCP server holds it:
    the provider reads it, and no model."""
    if depth > _MAX_DEPTH_OF_A_TOOL:
        return SECRET
    if isinstance(tool, list):
        return [without_logins(item, depth + 1) for item in tool]
    if not isinstance(tool, dict):
        return scrubbed(tool) if isinstance(tool, str) and "://" in tool else tool
    return {
        name: _login(value) if name in _LOGINS or _is_named(name, value) else without_logins(value, depth + 1)
        for name, value in tool.items()
    }


def _login(value: Any) -> Any:
    return dict.fromkeys(value, SECRET) if isinstance(value, dict) else SECRET if value else value


def without_credentials(headers: Any) -> Any:
    """Headers without the values of those that are named like credentials, `x-auth-key` or `x-session-id` too: a header
    is hidden where a name in a document would not be."""
    if not isinstance(headers, dict):
        return without_named(headers)
    return {name: _hidden(value) if _is_credential(name) else value for name, value in headers.items()}


def _is_named(name: str, value: Any) -> bool:
    return bool(_is_word(name) or (isinstance(value, (str, dict)) and _is_token(name)))


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return value if value is None or value == "" or isinstance(value, bool) else SECRET


def may_be_a_word(secret: str) -> bool:
    """Whether what is hidden in one place may be a word in others: it is short, or has no digit."""
    return len(secret) < _MIN_LENGTH_IN_CONTENT or not any(character.isdigit() for character in secret)

"""Takes secrets out of what is recorded: keys that this process was seen to send, and what is written like one.

A key that went out in a header is replaced wherever it turns up. By its form or its name (`api_key`, `Bearer ...`,
`?token=...`) a secret is found in errors, arguments, results and metadata; messages are not searched that way, as a
policy is trained on their exact text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SECRET = "[secret]"
_HEADERS = ("authorization", "proxy-authorization", "api-key", "x-api-key", "cookie")
_MIN_LENGTH = 8
_MIN_LENGTH_IN_CONTENT = 16  # "not-needed" is a key to some servers, and a word to everybody
_MAX_KNOWN = 64

_known: dict[str, None] = {}

_NAME = (
    r"(?:[\w.-]*[_.-])?(?:api[_-]?key|authorization|password|passwd|secret(?:[_-]?key)?|(?:access|private)[_-]?key"
    r"|(?:access|refresh|auth|bearer|id|session)[_-]?token|credentials?|cookie)"
)
_KEYS = r"(?:sk|pk|rk|gsk|xai|hf|gh[opsu]|glpat|xox[abprs])[-_](?=[\w-]*\d)[\w-]{12,}"
_PATTERNS = (
    # "api_key": "...", in JSON, in JSON inside JSON and in a repr
    (rf"((\\*[\"']){_NAME}\2\s*:\s*\2)(?!\[secret\])(?:.+?)(?<!\\)(\2)", rf"\1{SECRET}\3"),
    # --api-key ..., --api-key=..., ["--api-key", "..."], api_key=...
    (rf"(--?{_NAME}(?:\"\s*,\s*\"|=|\s+))(?!\[secret\])[^\s\"]+", rf"\1{SECRET}"),
    (rf"\b({_NAME}\s*[:=]\s*(?:bearer\s+|basic\s+)?)(?!\[secret\])[^\s,;\"'\[\]{{}}]{{8,}}", rf"\1{SECRET}"),
    (rf"([?&](?:{_NAME}|key|token|sig|signature|code)=)[^&\s\"'<>]+", rf"\1{SECRET}"),
    (r"(://)[^/\s:@\"']+:[^/\s@\"']+@", rf"\1{SECRET}@"),
    (r"(\bbearer\s+)(?=\S*\d)[\w.~+/=-]{8,}", rf"\1{SECRET}"),
    (rf"\b(?:{_KEYS}|AKIA[A-Z0-9]{{16}}|AIza[\w-]{{30,}}|eyJ[\w-]{{8,}}\.[\w-]{{8,}}\.[\w-]*)", SECRET),
)


def remember_headers(headers: Mapping[str, str]) -> None:
    """Note the secrets among the headers (names in lower case, or a mapping that minds no case) of a request."""
    for name in _HEADERS:
        value = headers.get(name)
        if value is not None:
            remember(value.rsplit(" ", 1)[-1])


def remember(secret: str) -> None:
    """Note one secret, to be replaced from now on wherever it turns up."""
    if secret not in _known and len(secret) >= _MIN_LENGTH:
        _known[secret] = None
        while len(_known) > _MAX_KNOWN:
            _known.pop(next(iter(_known)), None)


def without_known(text: str, *, is_content: bool = True) -> str:
    """`text` without the keys that went out. Short ones, which may be words, stay in what `is_content`."""
    for secret in tuple(_known):
        if secret in text and not (is_content and _may_be_a_word(secret)):
            text = text.replace(secret, SECRET)
    return text


def scrubbed(text: str) -> str:
    """`text` without the keys that went out, and without what is named or written like a secret."""
    text = without_known(text, is_content=False)
    for pattern, replacement in _PATTERNS:
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE | re.DOTALL)  # re keeps them compiled
    return text


def _may_be_a_word(secret: str) -> bool:
    return len(secret) < _MIN_LENGTH_IN_CONTENT or not any(character.isdigit() for character in secret)

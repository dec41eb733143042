"""Who may look: a login link that sets a cookie, or an Authorization header; the Host header; POSTs from our own pages
alone; and the headers that keep a browser from running anything that a trace holds."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arttrace.system.addresses import is_loopback_authority
from arttrace.views.web.forms import read_form
from arttrace.views.web.rendering import page

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_MAX_FORM_BYTES = 4096


class AccessGuard:
    """Lets requests through to `app` that come from whoever knows `key`. Without `anywhere` the Host header must name
    this machine, so that no page on the web can reach the viewer under a name of its own."""

    def __init__(self, app: ASGIApp, key: str, *, anywhere: bool = False) -> None:
        self._app = app
        self._key = key.encode()
        self._anywhere = anywhere
        digest = hmac.new(self._key, b"viewer", hashlib.sha256).hexdigest()
        self._cookie_name, self._cookie = f"arttrace_{digest[:8]}", digest[8:]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = await self._refusal(scope, receive)
        await (answer or self._app)(scope, receive, guarded)

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        """The answer to a request that goes no further, None for the others."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._anywhere and not is_loopback_authority(host.encode()):
            return page(
                "message.html",
                403,
                title="Not this address",
                text="The viewer answers to localhost and 127.0.0.1 only.",
            )
        if scope["path"].startswith("/static/"):
            return None
        if scope["path"] == "/login":
            return await self._login(Request(scope, receive))
        if self._bearer(headers.get("authorization", "")):
            return None
        if not self._has_cookie(headers):
            return page("login.html", 401, refused=False)
        if scope["method"] not in ("GET", "HEAD") and not _from_own_page(headers, host):
            return page("message.html", 403, title="Refused", text="Only the viewer's own pages may change something.")
        return None

    async def _login(self, request: Request) -> Response:
        given = request.query_params.get("key", "")
        if request.method == "POST":
            try:
                given = (await read_form(request, _MAX_FORM_BYTES)).get("key", "")
            except ValueError:
                given = "too long"
        if not hmac.compare_digest(given.strip().encode(), self._key):
            return page("login.html", 401, refused=bool(given))
        answer = RedirectResponse("/runs", 303)
        answer.set_cookie(self._cookie_name, self._cookie, max_age=30 * 86_400, httponly=True, samesite="lax")
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        cookies = cookie_parser(headers.get("cookie", ""))
        return hmac.compare_digest(cookies.get(self._cookie_name, "").encode(), self._cookie.encode())

    def _bearer(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key)


def login_link(url: str, key: str) -> str:
    """The address that logs a browser in."""
    return f"{url}/login?key={quote(key)}"


def _from_own_page(headers: Headers, host: str) -> bool:
    """Whether a page of this very server sent it, as the browser says."""
    fetched = headers.get("sec-fetch-site")
    if fetched is not None and fetched != "same-origin":
        return False
    return headers.get("origin", "").partition("://")[2] == host

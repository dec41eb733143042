"""Who gets in, and what a browser hears that it may do."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any, NoReturn, cast

import httpx
import pytest
from click.testing import CliRunner
from starlette.routing import Route
from starlette.testclient import TestClient
from viewer_site import KEY, Viewer

from arttrace.commands import cli
from arttrace.system.errors import ArttraceError
from arttrace.views.web.app import create_app
from arttrace.views.web.rendering import HERE


def test_without_the_key_nothing_of_a_run_is_shown(viewer: Viewer) -> None:
    for address in ("/runs", "/rows/runs", "/", "/nothing"):
        answer = httpx.get(viewer.url + address)
        assert answer.status_code == 401
        assert "travel_desk" not in answer.text
    refused = httpx.post(viewer.url + "/login", data={"key": "guessed"})
    assert refused.status_code == 401
    assert "not the key" in refused.text


def test_no_route_answers_without_the_key_or_under_another_name() -> None:
    """Every route that there is, with the method that it takes."""

    class Untouched:
        def __getattr__(self, name: str) -> NoReturn:
            raise AssertionError(f"the store was asked for {name}")

    app = create_app(cast("Any", Untouched()), KEY)
    client = TestClient(app, base_url="http://127.0.0.1")
    routes = [route for route in vars(app)["_app"].routes if isinstance(route, Route)]
    assert len(routes) > 20
    for route in routes:
        address = re.sub(r"{[^}]*}", "x", route.path)
        for method in sorted(route.methods or ()):
            assert client.request(method, address).status_code == 401, (method, address)
            named = {"host": "evil.example", "authorization": f"Bearer {KEY}"}
            assert client.request(method, address, headers=named).status_code == 403, (method, address)


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "....//app.py", "vendor/../../guard.py", "/etc/passwd"]
)
def test_static_files_are_those_of_the_viewer_alone(viewer: Viewer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", int(viewer.url.rpartition(":")[2])), timeout=60) as raw:
        raw.sendall(f"GET /static/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split()[1] in (b"400", b"401", b"404"), answer[:200]
    assert b"import" not in answer


def test_a_login_link_sets_a_cookie_that_no_script_can_read(viewer: Viewer) -> None:
    with httpx.Client(base_url=viewer.url) as client:
        entered = client.get(viewer.link)
        assert entered.status_code == 303
        said = entered.headers["set-cookie"].lower()
        assert "httponly" in said
        assert "samesite=lax" in said
        assert KEY not in said
        assert "travel_desk" in client.get("/runs").text


def test_an_authorization_header_does_as_well(viewer: Viewer) -> None:
    assert httpx.get(viewer.url + "/runs", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    assert httpx.get(viewer.url + "/runs", headers={"authorization": "Bearer x"}).status_code == 401


def test_another_name_for_this_address_is_refused(viewer: Viewer) -> None:
    shown = {"host": "evil.example", "authorization": f"Bearer {KEY}"}
    assert httpx.get(viewer.url + "/runs", headers=shown).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "OWN"},
    ],
)
def test_a_post_from_elsewhere_is_refused(viewer: Viewer, headers: dict[str, str]) -> None:
    headers = {name: viewer.url if value == "OWN" else value for name, value in headers.items()}
    with httpx.Client(base_url=viewer.url) as client:
        client.get(viewer.link)
        assert client.post("/runs/anything/rewards", headers=headers).status_code == 403


def test_only_own_scripts_and_styles_may_run(viewer: Viewer) -> None:
    for address in ("/runs", "/login", "/static/viewer.js", "/nothing"):
        policy = httpx.get(viewer.url + address).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    for template in (HERE / "templates").glob("*.html"):
        text = template.read_text()
        assert "|safe" not in text.replace(" ", "")
        assert " style=" not in text
        assert " onclick=" not in text
        assert "https://" not in text


def test_another_address_than_loopback_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARTTRACE_API_KEY", raising=False)
    with pytest.raises(ArttraceError, match="no key is set"):
        CliRunner().invoke(
            cli, ["view", "--host", "0.0.0.0", "--port", "0", "--dir", str(tmp_path)], catch_exceptions=False
        )

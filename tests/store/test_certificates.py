"""Clients that read no certificates for plain HTTP check them for TLS, however an address spells it, against those that
this machine trusts."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import openai
import pytest
from otlp_receiver import receiving
from own_certificate import own_certificate

from arttrace.commands.recorded_program import PolicyGateway
from arttrace.loop.processes.openai_client import client_of, trusted
from arttrace.store import open_store
from arttrace.store.access.client import OwnerClient, OwnerGone
from arttrace.system.errors import ServingError, StoreError
from arttrace.system.paths import DataDir
from trainer.serving.client import GatewayClient, GatewayGone


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_a_server_whose_certificate_nobody_signed_is_not_asked(scheme: str, tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*own_certificate(tmp_path))
    with receiving(tls=tls) as server:
        url = server.url.replace("https", scheme)
        with pytest.raises(OwnerGone, match="certificate verify failed"):
            OwnerClient(url, None).directory()
        with pytest.raises(GatewayGone, match="certificate verify failed"):
            GatewayClient(url).status()
        problem = PolicyGateway("policy", url, None).problem()
    assert problem is not None
    assert "certificate verify failed" in problem.cause


def test_an_authority_of_ones_own_is_trusted_where_the_machine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP clients trust a list of their own: agents reached a collector behind a proxy with a company's certificate,
    and of `arttrace ls --url` it was said that it does not answer."""
    certificate, key = own_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with receiving(tls=tls) as server:
        elsewhere = DataDir(tmp_path, url=server.url)
        with pytest.raises(StoreError, match=r"does not answer: .*certificate verify failed") as error:
            open_store(elsewhere)
        assert "SSL_CERT_FILE" in str(error.value.hint)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        for asked in (
            lambda: open_store(elsewhere),
            lambda: OwnerClient(server.url, None).directory(),
            lambda: GatewayClient(server.url).status(),
        ):
            with pytest.raises((StoreError, ServingError), match=r"404|501|not the owner"):
                asked()
        problem = PolicyGateway("policy", server.url, None).problem()
    assert problem is not None
    assert problem.answers


def test_the_client_that_a_model_hands_out_trusts_the_machines_store_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop's steps went to a server behind a company's proxy, and its rollouts failed there."""
    certificate, key = own_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        ssl.SSLContext, "load_default_certs", lambda self, purpose=None: self.load_verify_locations(certificate)
    )
    trusted.cache_clear()
    try:
        with receiving(tls=tls) as server:
            client = client_of(f"{server.url}/v1", "k").with_options(max_retries=0)
            with pytest.raises(openai.APIStatusError):
                asyncio.run(client.chat.completions.create(model="m", messages=[]))
    finally:
        trusted.cache_clear()

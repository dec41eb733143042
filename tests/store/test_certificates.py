"""Clients that read no certificates for plain HTTP check them for TLS, however an address spells it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from otlp_receiver import receiving
from own_certificate import own_certificate

from arttrace.commands.recorded_program import PolicyGateway
from arttrace.store.access.client import OwnerClient, OwnerGone
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

"""`arttrace collect`: an OTLP endpoint that puts spans of any OpenTelemetry SDK into the data directory."""

from __future__ import annotations

import click

from arttrace.collector.server import serve
from arttrace.commands.options import dir_option
from arttrace.paths import DataDir


@click.command("collect", short_help="Receive spans of any OpenTelemetry SDK.")
@click.option("--port", type=click.IntRange(0, 65535), default=4318, show_default=True, help="0 takes a free port.")
@dir_option
def command(port: int, data: DataDir) -> None:
    """Receive spans over OTLP/HTTP (protobuf or JSON) on 127.0.0.1, until Ctrl-C.

    Not needed for agents that arttrace captures itself: those write to the data directory directly. For any other
    OpenTelemetry SDK set OTEL_EXPORTER_OTLP_ENDPOINT to the address printed. A span is acknowledged when it is on
    the disk; `arttrace ls` shows it from then on.
    """

    def ready(url: str) -> None:
        click.echo(f"collecting on {url} (POST /v1/traces) into {data.root}; stop with Ctrl-C")

    serve(data, port, ready)

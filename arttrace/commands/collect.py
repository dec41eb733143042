"""`arttrace collect`: an OTLP endpoint that stores spans of any OpenTelemetry SDK in the data directory."""

from __future__ import annotations

import click

from arttrace.collector.server import serve
from arttrace.commands.shared import units
from arttrace.commands.shared.options import api_key_file_option, dir_option
from arttrace.commands.shared.progress import say
from arttrace.store.file.retention import Limits
from arttrace.store.server.owner import HOST
from arttrace.system.paths import DataDir


@click.command("collect")
@click.option("--port", type=click.IntRange(0, 65535), default=4318, show_default=True, help="0 takes a free port.")
@click.option("--host", default=HOST, show_default=True, help="Listen on this address; any but loopback needs a key.")
@click.option("--grpc-port", type=click.IntRange(0, 65535), help="Receive OTLP/gRPC on this port too; usually 4317.")
@click.option(
    "--retain", "age_ns", metavar="AGE", callback=units.age_ns, help="Remove runs that are older: 30d, 12h, 2w."
)
@click.option(
    "--retain-size",
    "max_bytes",
    metavar="SIZE",
    callback=units.size_bytes,
    help="Remove the oldest runs beyond this size: 10GB.",
)
@api_key_file_option
@dir_option
def command(
    port: int,
    host: str,
    grpc_port: int | None,
    age_ns: int | None,
    max_bytes: int | None,
    api_key: str | None,
    data: DataDir,
) -> None:
    """Receive spans over OTLP/HTTP (protobuf or JSON; gzip, zstd or deflate), until Ctrl-C.

    Not needed for agents that arttrace captures itself: those write to the data directory directly. For any other
    OpenTelemetry SDK set OTEL_EXPORTER_OTLP_ENDPOINT to the address printed. A span is acknowledged when it is on
    the disk. While the collector runs it owns the store, and other commands read through it.

    With --retain or --retain-size, old runs are removed every hour, as by `arttrace prune`.
    """

    def ready(url: str, grpc: int | None) -> None:
        also = "" if grpc is None else f" and gRPC on port {grpc}"
        click.echo(f"collecting on {url} (POST /v1/traces){also} into {data.root}; stop with Ctrl-C")

    serve(
        data,
        port,
        ready,
        host=host,
        grpc_port=grpc_port,
        api_key=api_key,
        retention=Limits(age_ns, max_bytes),
        say=say,
    )

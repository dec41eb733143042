"""`arttrace view`: the viewer, a local web application over the store."""

from __future__ import annotations

import contextlib
import webbrowser

import click
from click.core import ParameterSource

from arttrace.commands.shared.options import api_key_file_option, store_option
from arttrace.store.server.owner import Ending, hold_store, http_server, listen, url_of
from arttrace.system.addresses import is_loopback
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.system.private_files import kept_key
from arttrace.views.web.app import create_app
from arttrace.views.web.guard import login_link

VIEWER_KEY = "viewer.key"


@click.command("view")
@click.option("--port", type=click.IntRange(0, 65535), default=4390, show_default=True, help="0 takes a free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Another address needs --api-key-file.")
@click.option("--open", "opens", is_flag=True, help="Open the link in the browser.")
@api_key_file_option
@store_option
def command(port: int, host: str, opens: bool, api_key: str | None, data: DataDir) -> None:
    """Look at runs, groups, tokens and training in the browser.

    The command prints a link that logs your browser in; other users of the machine cannot log in. Nothing is loaded
    from other servers, and no content of a trace is executed. Other commands keep working meanwhile. Stop with Ctrl-C.
    """
    if api_key is None and not is_loopback(host):
        raise ArttraceError(
            f"{host} can be reached from other machines, and no key is set",
            "Give --api-key-file FILE with a long random key in it, and put TLS in front of it.",
        )
    listener = listen(host, port)
    with contextlib.closing(listener), hold_store(data) as store, Ending.on_signals() as ending:
        if click.get_current_context().get_parameter_source("api_key") is not ParameterSource.COMMANDLINE:
            api_key = None if is_loopback(host) else api_key  # that of the environment is the collector's
        key = api_key or kept_key(data.root / VIEWER_KEY)
        link = login_link(url_of(listener), key)
        click.echo(f"viewer: {link if api_key is None else f'{url_of(listener)}/login?key=KEY, with its key'}")
        if opens:
            webbrowser.open(link)
        ending.run(http_server(create_app(store, key, anywhere=api_key is not None)), listener)

"""`pool dev`: an embedded server in the foreground, for programs that are being written."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

import attrs

from pool.errors import ConfigError
from pool.ops.terminal import write
from pool.redis.embedded.server import EmbeddedServer, find_server

_SIGNALS = {signal.SIGINT, signal.SIGTERM}


def run(args: argparse.Namespace) -> int:
    """Carry out `pool dev`: print the address, then wait for SIGINT or SIGTERM."""
    program = find_server("path")
    directory = Path(args.dir) if args.dir else None
    try:
        started = EmbeddedServer.start(program, directory=directory, tcp_port=args.port)
    except ConfigError as error:
        setting = "port" if error.setting == "tcp_port" else error.setting
        raise attrs.evolve(error, setting=setting) from None
    with started as server:
        if args.web is not None:
            return _serve(args, server.url)
        # Blocked, so that one which comes before we wait for it waits for us; only now, because the
        # server's processes would inherit that.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        facts = {
            "url": server.url,
            "server": f"{program.name} {program.version}",
            "directory": str(server.directory),
            "keeps_data": not server.is_private,
        }
        if args.json:
            write([json.dumps(facts)])
        else:
            kept = f"data in {server.directory}" if directory else "data end with it"
            write([server.url, f"{facts['server']}, {kept}; Ctrl-C ends it"])
        signal.sigwait(_SIGNALS)
    return 0


def _serve(args: argparse.Namespace, url: str) -> int:
    """Be a gateway of the pool `dev` there, until a signal ends both."""
    from pool.ops.cli.web import Serving, WebReady, serve

    def tell(ready: WebReady) -> None:
        if args.json:
            write([json.dumps({"url": url, "web": ready.web, "pool": ready.pool})])
        else:
            write([url, f"{ready.web} for the pool {ready.pool}; Ctrl-C ends both"])

    # So few that they need no more files than a shell allows.
    serving = Serving(
        pool="dev",
        url=url,
        port=args.web,
        port_option="web",
        connections_max=500,
        is_json=args.json,
    )
    serve(serving, tell)
    return 0

"""What every benchmark's command line has: one server, one event loop or both, tables or JSON."""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.probe import Probe
from benchmarks.report import Report, document
from pool.testing import EmbeddedServer, find_server


def command_line(name: str, about: str | None) -> ArgumentParser:
    """Return a parser of the options that all have."""
    parser = ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--loop", choices=("asyncio", "trio", "both"), default="asyncio")
    parser.add_argument(
        "--url", help="a server to use (its figures must be ours alone); default: an embedded one"
    )
    return parser


def run(given: Namespace, measure: Callable[[Probe, str], Report], **facts: Any) -> None:
    """Start a server unless one is given, measure on each event loop, print.

    Args:
        given: What `command_line()` parsed.
        measure: Takes all measurements on one event loop.
        facts: Stand in the document too; `sizes` and `repeats` also in its heading.
    """
    loops: Sequence[str] = ("asyncio", "trio") if given.loop == "both" else (given.loop,)
    with ExitStack() as stack:
        url = given.url
        if url is None:
            url = stack.enter_context(EmbeddedServer.start(find_server("path"))).url
        probe = Probe(url)
        stack.callback(probe.close)
        began_s, load = time.monotonic(), os.getloadavg()
        reports = [measure(probe, loop) for loop in loops]
        measured = document(
            reports,
            server=probe.server(),
            transport=url.partition(":")[0],
            load_before=[round(each, 2) for each in load],
            seconds=time.monotonic() - began_s,
            **facts,
        )
    print(json.dumps(measured.as_json(), indent=2) if given.json else measured.as_text())

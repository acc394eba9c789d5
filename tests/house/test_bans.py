"""What must not be written, with the few reviewed places where it may be, and why."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path for name in ("pool", "examples", "benchmarks") for path in (ROOT / name).rglob("*.py")
]
SCRIPTS = sorted((ROOT / "pool/redis/lua").rglob("*.lua"))

# Stored bytes must never run code, and never choose what is imported.
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml", "xml"}
CALLS = {"eval", "exec", "compile", "__import__", "import_module", "system", "popen"}
MAY_CALL = {
    ("pool/__init__.py", "import_module"): "the home of a public name, from a table beside it",
    ("pool/jobs/child.py", "import_module"): "the module of a function that the parent has there",
    ("pool/redis/scripts.py", "KEYS"): "the table of that name in a script's header",
    ("pool/ops/cli/carrying.py", "import_module"): "one of our own commands, chosen by argparse",
    ("pool/ops/cli/loading.py", "import_module"): "what the operator named on the command line",
    ("pool/streams/stream.py", "XDEL"): "a program removes events of its own stream",
    ("pool/streams/sink.py", "XDEL"): "a program drops parked events",
    ("pool/redis/acl.py", "XGROUP"): "the name of a family of commands",
    ("pool/redis/commands/plain.py", "XDEL"): "what reads its reply",
    ("pool/redis/commands/plain.py", "SCAN"): "likewise",
    ("pool/ops/stores.py", "SCAN"): "in pages, for an operator who names no map, or purges",
}
COMMANDS = {
    "KEYS",
    "SCAN",
    "EVAL",
    "FLUSHALL",
    "FLUSHDB",
    "MONITOR",
    "PSUBSCRIBE",
    "XGROUP",
    "XDEL",
}
KEYWORDS = {("shell", True), ("verify", False), ("check_hostname", False)}

# Each silently loses jobs in the wrong place.
MAY_SCRIPT = {
    ("lib/finish.lua", "XDEL"): "ends the pending state; the payload is carried along",
    ("advance.lua", "XDEL"): "acknowledges; the payload is kept in `payloads`",
    ("quarantine.lua", "XDEL"): "the entry of a record that is parked with its payload",
    ("reap.lua", "XDEL"): "an entry that no record confirms",
    ("reconcile.lua", "XDEL"): "an entry that no record confirms",
    ("reconcile.lua", "SCAN"): "what one worker owns, a page at a time",
    ("rmap_page.lua", "SCAN"): "a map's strings, a page at a time",
    ("lib/journal.lua", "MAXLEN"): "the journal",
    ("intend.lua", "MAXLEN"): "signals, which only wake",
    ("signal.lua", "MAXLEN"): "signals, which only wake",
    ("notify.lua", "MAXLEN"): "signals, which only wake: the inbox holds the message",
    ("lib/rmap.lua", "MAXLEN"): "a map's log: who falls behind takes a snapshot",
    ("lib/rmap_plain.lua", "MAXLEN"): "the same log",
    ("lib/list_plain.lua", "MAXLEN"): "the same log",
    ("lib/rmap.lua", "EXPIRE"): "the log of a map that has ended; nothing is decided by it",
    ("rate.lua", "MAXLEN"): "figures of a day: older ones go",
    ("walk.lua", "SCAN"): "one slice at a time, by the one node that holds the walk",
    ("lib/append.lua", "MAXLEN"): "a cap that the program asked for; what it takes is told",
    ("lib/append.lua", "EXPIRE"): "an end that the program asked for",
    ("lib/ends.lua", "EXPIRE"): "whether that was so",
    ("stream_add_once.lua", "EXPIRE"): "the same end",
    ("stream_end.lua", "EXPIRE"): "an end that the program asks for",
    ("sink_join.lua", "XGROUP"): "makes groups; only the very first may begin at the newest",
    ("sink_drop.lua", "XDEL"): "a parked event that its program has asked to forget",
    ("sink_ack.lua", "XGROUP"): "acknowledges what a program says is done",
    ("lib/park.lua", "XGROUP"): "acknowledges what it has parked, in the same step",
    ("lib/group.lua", "XGROUP"): "forgets a consumer in the step that sees it hold nothing",
}
BANNED_IN_LUA = {
    "KEYS": r"call\('KEYS'",
    "SCAN": r"call\('[HSZ]?SCAN'",
    "XGROUP": r"call\('X(GROUP|READGROUP|ACK|AUTOCLAIM)'",
    "XDEL": r"(call|later)\('XDEL'",
    "XTRIM": r"call\('XTRIM'",
    "MAXLEN": r"'MAXLEN'",
    "EXPIRE": r"call\('P?EXPIRE",
    "code from text": r"\b(loadstring|load|dofile|setfenv|getfenv|cmsgpack|struct)\b\s*[.(]",
}


def banned(path: Path) -> Iterator[str]:
    """Yield what a Python file uses of it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (n.name for n in names if n.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield module
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield name
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in CALLS:
                if not (isinstance(value, ast.Name) and value.id == "re"):
                    yield name
            case ast.keyword(arg=str(arg), value=ast.Constant(value=value)):
                if (arg, value) in KEYWORDS:
                    yield f"{arg}={value!r}"
            case ast.Attribute(attr="CERT_NONE"):
                yield "CERT_NONE"
            case ast.Constant(value=str(text)) if (
                text in COMMANDS and "benchmarks" not in path.parts
            ):
                yield text  # a benchmark has a server of its own, and looks into all of it


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_uses_nothing_that_is_banned(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    assert [use for use in banned(path) if (name, use) not in MAY_CALL] == []


def test_scripts_use_what_is_banned_only_where_it_was_reviewed() -> None:
    """And each place that is named still exists."""
    found = set()
    for path in SCRIPTS:
        code = re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", path.read_text("utf-8"), flags=re.DOTALL)
        name = str(path.relative_to(ROOT / "pool/redis/lua"))
        found |= {(name, what) for what, form in BANNED_IN_LUA.items() if re.search(form, code)}
    assert found == set(MAY_SCRIPT)


def test_lua_is_never_put_together_from_values() -> None:
    """Scripts are files; only the loader joins them, and a script's text is sent by the port."""
    joins = re.compile(r"redis\.p?call|\.lua\b.*read_text|script\.(source|numbered\b)")
    places = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if "benchmarks" not in path.parts and joins.search(path.read_text("utf-8"))
    }
    assert places == {"pool/redis/scripts.py", "pool/redis/io/body.py"}


def test_the_search_finds_what_it_searches_for(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import pickle\nfrom yaml import load\neval('1')\nos.system('x')\n"
        "run('x', shell=True)\nget('x', verify=False)\nc = ssl.CERT_NONE\ndo('KEYS', '*')\n"
    )
    uses = {"pickle", "yaml", "eval", "system", "shell=True", "verify=False", "CERT_NONE", "KEYS"}
    assert set(banned(bad)) == uses

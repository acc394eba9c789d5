"""The parts of the documents that the code knows: written by it, never copied.

    python -m tools.reference            writes them anew
    python -m tools.reference --check    says which are stale, and writes nothing

A part stands between `<!-- name -->` and `<!-- /name -->`; what is around it is written by people.
"""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs

import pool
import pool.batches
import pool.codecs
import pool.events
import pool.letters
import pool.listing
import pool.maps
import pool.metrics
import pool.middleware
import pool.pauses
import pool.plans
import pool.schedules
import pool.streams
import pool.sync
import pool.testing
import pool.web
from pool import names
from pool.core import lifecycle
from pool.core.journal import EDGES, TOLD
from pool.errors import PoolError
from pool.ops.cli import parser as words
from pool.ops.cli.explain import facts, kinds
from pool.ops.cli.shapes import SHAPES, classes, fields_of, word_of
from pool.ops.doctor import RULES
from pool.ops.findings import SEVERITIES, Rule, linked, pages
from pool.ops.web.openapi import document
from pool.ops.web.problems import REFUSALS, STATUSES
from pool.ops.web.routes import ROUTES, WebRoute
from pool.redis.scripts import Script
from pool.settings import Settings
from tools import figures, life

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
FAMILIES: Final = {
    "UsageError": "Correct the call",
    "RefusedError": "The pool said no",
    "LostError": "It is no longer ours",
    "StoreError": "Redis",
    "NodeError": "The node itself",
    "HandlerError": "How the job ended",
}
# Every public name that is no error and no event of its own, by the page that tells of it.
API: Final = {
    "jobs": (
        *(
            "Node",
            "Handlers",
            "Handler",
            "Runner",
            "Result",
            "Job",
            "Depends",
            "Step",
            "Retry",
            "Cancel",
            "Park",
            "Call",
            "Follower",
        ),
        *("Dispatching", "JobRef", "Status", "Progress", "LocalWorker", "WorkerInfo"),
        *pool.batches.__all__,
        *pool.letters.__all__,
        *pool.listing.__all__,
        *pool.schedules.__all__,
        *pool.middleware.__all__,
        *pool.plans.__all__,
        *pool.pauses.__all__,
        *pool.codecs.__all__,
    ),
    "maps": ("ReplicatedMap", *pool.maps.__all__),
    "streams": ("Stream", *pool.streams.__all__),
    "sync": tuple(pool.sync.__all__),
    "rest": (
        *("Settings", "Event", "Observer", "JobEvents", "log_observer", "freeze_memory"),
        *pool.metrics.__all__,
        *pool.web.__all__,
    ),
}
_HOMES: Final = (
    pool,
    pool.batches,
    pool.codecs,
    pool.letters,
    pool.listing,
    pool.schedules,
    pool.maps,
    pool.metrics,
    pool.middleware,
    pool.plans,
    pool.pauses,
    pool.streams,
    pool.sync,
    pool.web,
    pool.events,
)
_HEADER: Final = re.compile(r"^--\[\[\n(\w+): (.*?)\]\]", re.DOTALL)


# --- small things ---------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def said(what: object) -> str:
    """Return a docstring as Markdown, with the usual one space between sentences."""
    return _one_space(inspect.cleandoc(getattr(what, "__doc__", "") or ""))


# --- the parts ------------------------------------------------------------------------------


def settings() -> str:
    return table(("setting", "default", "bounds", "what it is"), settings_rows())


def settings_rows() -> Iterator[Sequence[str]]:
    for field in attrs.fields(Settings):
        meta: Any = field.metadata
        if "low" in meta:
            bounds = f"{meta['low']:,.12g} to {meta['high']:,.12g} {meta['unit']}".strip()
            default = "the pool's" if field.default is None else f"{field.default:,.12g}"
            yield f"`{field.name}`", default, bounds, meta["doc"]
        else:
            yield f"`{field.name}`", str(field.default), meta["unit"], meta["doc"]


def errors() -> str:
    """All errors at a glance."""
    return table(("error", "", "what to do"), errors_rows())


def errors_rows() -> Iterator[Sequence[str]]:
    for kind in kinds():
        it = facts(kind)
        if kind.__name__ in FAMILIES:
            yield f"**{FAMILIES[kind.__name__]}**", f"`{kind.__name__}`", ""
        elif kind is not PoolError:
            retry = " *retry*" if kind.retryable else ""
            name = kind.__name__
            yield f"[`{name}`](#{name.lower()}){retry}", str(it["says"]), kind.hint


def error_entries() -> str:
    """One entry for each error: its page, as `pool explain` prints it."""
    return "\n\n".join(_entry(kind) for kind in kinds() if kind is not PoolError)


def _entry(kind: type[PoolError]) -> str:
    it = facts(kind)
    if kind.__name__ in FAMILIES:
        return f"## {FAMILIES[kind.__name__]}\n\n`{kind.__name__}` [{kind.code}]: {it['says']}"
    parts = [f"### {kind.__name__}", f"`{kind.code}`: {it['says']}", str(it["more"])]
    named = ", ".join(f"`{field.name}`" for field in attrs.fields(kind))
    told = [f"It tells {named}."] if named else []
    told += ["The same call may be repeated."] if kind.retryable else []
    told += [f"**What to do:** {kind.hint}."]
    told += [f"**On the command line:** {kind.shell_hint}."] if kind.shell_hint else []
    return "\n\n".join(part for part in (*parts, " ".join(told)) if part)


def events() -> str:
    """Every event that observers are told of."""
    found = sorted(_events(), key=lambda each: str(each.event))
    assert found
    return "\n\n".join(_event(each) for each in found)


def edges() -> str:
    """Every word that scripts write into the journal, and what readers say of themselves."""
    told = {**EDGES, **TOLD}
    return table(("edge", "what it means"), ((f"`{word}`", says) for word, says in told.items()))


def _events() -> Iterator[Any]:
    for module in pkgutil.walk_packages(pool.__path__, "pool."):
        for each in vars(import_module(module.name)).values():
            is_here = isinstance(each, type) and each.__module__ == module.name
            if is_here and attrs.has(each) and isinstance(getattr(each, "event", None), str):
                yield each


def _event(kind: Any) -> str:
    told = ", ".join(f"`{field.name}`" for field in attrs.fields(kind)) or "nothing more"
    noted = " It is noted in the journal." if getattr(kind, "is_journalled", False) else ""
    return f"### {kind.event}\n\n*{kind.level}.* {said(kind)}\n\nIt tells {told}.{noted}"


def commands() -> str:
    """Every command with its options, from the parser itself."""
    parser = words.make()
    [sub] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    helps = {action.dest: action.help for action in sub._choices_actions}
    assert parser.epilog
    parts = [f"{parser.epilog} All take `--json`."]
    for name, each in sub.choices.items():
        parts += _command(f"## pool {name}", each, str(helps[name]))
    return "\n\n".join(parts)


def _command(title: str, parser: argparse.ArgumentParser, says: str) -> Iterator[str]:
    """Yield what is said of a command; where it has verbs, of each of them."""
    yield title
    yield _sentence(says)
    yield f"```text\n{' '.join(_usage(parser).split())}\n```"
    if parser.epilog:
        yield _one_space(parser.epilog)
    verbs = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    rows = [] if verbs or title == "## pool check" else list(_options(parser))  # those of `run`
    if rows:
        yield table(("", ""), iter(rows))
    for verb in verbs:
        for told in verb._choices_actions:
            of = verb.choices[told.dest]
            yield from _command(f"#{title} {told.dest}", of, str(told.help))


def shapes() -> str:
    """What `--json` prints, by the classes of which it is made."""
    verbs = (
        (f"`pool {verb}`", f"[`{kind.__name__}`](#{kind.__name__.lower()})")
        for verb, kind in SHAPES.items()
    )
    failed = (
        "A call that fails prints an object too, beside its line on standard error: `ok` is false, "
        "and `error` has the `code` of the error and what is `told` of it."
    )
    parts = [table(("verb", "prints"), verbs), failed]
    for kind in classes():
        rows = ((f"`{name}`", word_of(each)) for name, each in fields_of(kind).items())
        parts += [f"### {kind.__name__}", said(kind), table(("field", "is"), rows)]
    return "\n\n".join(parts)


def findings() -> str:
    """What `pool doctor` looks for, from its table."""
    rows = (
        (
            f"[`{rule.name}`](../findings/{rule.name}.md)",
            *(rule.severity, rule.looks_at, rule.threshold),
        )
        for rule in RULES
    )
    return table(("finding", "how bad", "what is looked at", "from when on"), rows)


def finding(rule: Rule) -> str:
    """The page of a finding, as `pool explain` prints it."""
    page = pages()[rule.name]
    looks = f"It looks at {rule.looks_at}. That is a finding when: {rule.threshold}."
    mends = {
        "": "",
        "recover": "`pool doctor --fix --yes` mends it, by being a node for a while.",
        "ttl": "`pool doctor --fix --yes` mends it, by bringing the TTL to all lanes.",
    }[rule.fix]
    parts = (
        f"# {rule.name}",
        f"*{rule.severity}: {SEVERITIES[rule.severity]}.* {looks}",
        *("## Why", linked(page.why, "../")),
        *("## What to do", linked(page.do, "../"), mends),
        *("## How to see that it is over", linked(page.over, "../")),
        "[All findings](../how-to/at-three-in-the-morning.md#what-is-looked-for)",
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def _one_space(text: str) -> str:
    return re.sub(r"(?<=[.:;?!]) {2,}", " ", text)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _usage(parser: argparse.ArgumentParser) -> str:
    return (
        parser.format_usage().removeprefix("usage: ").replace("[-h] ", "").replace("[--json] ", "")
    )


def _options(parser: argparse.ArgumentParser) -> Iterator[Sequence[str]]:
    for action in parser._actions:
        if action.dest in {"help", "json"} or action.help == argparse.SUPPRESS:
            continue
        name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        choices = f"; one of {', '.join(map(str, action.choices))}" if action.choices else ""
        says = _one_space((action.help or "").replace("%%", "%"))
        if str(action.metavar).startswith("{"):
            choices = f" One of {str(action.metavar)[1:-1].replace(',', ', ')}."
        yield f"`{name}`", f"{says}{choices}".removeprefix("; ")


def redis_keys() -> str:
    """Every key of a pool, from the file that makes them all."""
    parts = ["## Of a lane", _keys_of(names.Names("P", 0), "`pool:{P:0}:`")]
    parts += ["## Of the pool as a whole", _keys_of(names.Control("P"), "`pool:{P}:`")]
    return "\n\n".join(parts)


# Of what type a key is; and of those without a part in their names, what they hold.  What a method
# of `Names` or `Control` makes is said by its docstring.
KINDS: Final = {
    "lane": ("hash", "TTL, pool time, stamp, counters, generation, and what is paused"),
    "keepalive": (
        "zset",
        "worker or node -> lease end; of a fenced one: by when its reaper must go on",
    ),
    "open": ("hash", "worker -> how many keys it takes, told with each renewal"),
    "handlers": ("hash", "name -> options, of every handler ever registered here"),
    "jobs": ("hash", "key -> record"),
    "pending": ("zset", "key -> by when its start must be acknowledged"),
    "due": (
        "zset",
        "key -> when its delay, retry or limit is over; lanes, batches, s: when somebody comes",
    ),
    "payloads": (
        "hash",
        "key -> arguments, where no start in a stream holds them; followers, what is for lanes",
    ),
    "cleanup": ("hash", "worker or node -> who takes over from it; a field here is what fences"),
    "parked": ("zset", "job id and key -> when it was parked"),
    "letters": ("hash", "job id and key -> dead letter"),
    "checkpoints": (
        "hash",
        "key -> state that a job saved or handed over; line feed, id, space, key -> its steps",
    ),
    "journal": (
        "stream",
        "what does not happen to an ordinary job; the latest 10,000, of 1,200 bytes at most",
    ),
    "trials": ("hash", "worker -> the suspected job that it began last"),
    "deaths": ("zset", "PROCESS.MS, a process that died -> MS, the pool time of its last renewal"),
    "attempts": ("hash", "key -> how its job's latest attempts failed"),
    "schedules": ("hash", "name -> schedule, and how it stands"),
    "scheduled": ("zset", "name -> when it is due, by the server's own clock; not of paused ones"),
    "tickers": ("hash", "name -> its latest tick, and who had it"),
    "rates": ("hash", "what was counted of jobs in the minute under way; in the first lane"),
    "rated": ("stream", "likewise, of each minute of the last day; less than a megabyte"),
    "kept": ("zset", "length of the outcome, job id and key -> until when it is remembered"),
    "batches": ("zset", "id of each batch -> when it was opened"),
    "config": ("hash", "protocol, lanes, TTL and generation: what the pool was made as"),
    "map_due": ("zset", "map -> when its time is up"),
    "maps": ("hash", "the time by which maps end, and how far those came that have"),
    "batch": ("hash", ""),
    "inbox": ("list", ""),
    "owned": ("set", ""),
    "result": ("string", ""),
    "signal": ("stream", ""),
    "stream": ("stream", ""),
    "unassigned": ("zset", ""),
    "map_data": ("hash", ""),
    "map_lists": ("zset", ""),
    "map_log": ("stream", ""),
    "sink": ("hash", ""),
    "sink_leases": ("zset", ""),
    "sink_parked": ("stream", ""),
    "stream_meta": ("hash", ""),
    "stream_once": ("hash", ""),
}
KIND_OF: Final = {"stream-once-ends": "zset"}  # of a second key that has the same words
LATER: Final = {"next"}  # names that nothing is stored under yet


def _keys_of(made: Any, prefix: str) -> str:
    rows = [
        _key_row(getattr(made, field.name), made.prefix, field.name, None)
        for field in attrs.fields(type(made))
        if field.name not in {"pool", "number", "prefix"}
    ]
    for name, method in inspect.getmembers(type(made), inspect.isfunction):
        if not name.startswith("_") and name not in LATER:
            wanted = list(inspect.signature(method).parameters)[1:]
            keys = getattr(made, name)(*(each.upper() for each in wanted))
            keys = keys if isinstance(keys, tuple) else (keys,)
            rows += [_key_row(key, made.prefix, name, method) for key in keys]
    return f"All begin with {prefix}.\n\n{table(('key', 'type', 'what it holds'), iter(rows))}"


def _key_row(key: str, prefix: str, name: str, method: object) -> Sequence[str]:
    assert name in KINDS, f"tools/reference.py does not know of what type {name} is"
    kind, holds = KINDS[name]
    holds = holds or said(method).rstrip(".")
    kind = KIND_OF.get(key.removeprefix(prefix).partition(":")[0], kind)
    return f"`{key.removeprefix(prefix)}`", kind, f"{holds[0].lower()}{holds[1:]}"


def scripts() -> str:
    """Every script's header: what it does, what it takes and gives, why it is Lua."""
    loaded = {each.name for each in _scripts()}
    parts = []
    for path in sorted(ROOT.glob("pool/**/lua/*.lua")):
        header = _HEADER.match(path.read_text("utf-8"))
        assert header, path
        assert header[1] in loaded, path
        first, _, rest = header[2].partition("\n")
        parts += [f"## {header[1]}", _sentence(first.rstrip(".")), f"```text\n{rest.strip()}\n```"]
    return "\n\n".join(parts)


def _scripts() -> Iterator[Script]:
    for module in pkgutil.walk_packages(pool.__path__, "pool."):
        for each in vars(import_module(module.name)).values():
            if isinstance(each, Script):
                yield each


def transitions() -> str:
    """The life of a job as a table: what may happen in each state, and what it is then."""
    return table(("a job that is", "on", "becomes"), _transitions())


def _transitions() -> Iterator[Sequence[str]]:
    yield "not there", "dispatch", "pending, unassigned, (with a delay) waiting, or queued"
    yield "queued", "the end of the one before it", "waiting, and due at once"
    for (state, edge), becomes in lifecycle.TABLE.items():
        others = [each for each in becomes if each not in (state, "cancelled")]
        if edge == lifecycle.CANCEL:
            others = ["cancelled"]
        if others:
            yield state, lifecycle.EDGE_NAMES[edge], " or ".join(others)


def http_routes() -> str:
    """What can be asked over HTTP, by the table of routes."""
    parts = []
    for group in dict.fromkeys(route.group for route in ROUTES):
        rows = (_route_row(route) for route in ROUTES if route.group == group)
        head = ("", "role", "what it does", "sent", "answer")
        parts += [f"### {group.capitalize()}", table(head, rows)]
    return "\n\n".join(parts)


def _route_row(route: WebRoute) -> Sequence[str]:
    sent = [kind.__name__ for kind in (*route.body, *filter(None, (route.query,)))]
    answers = {route.status: route.answer, **route.also}
    told = ", ".join(
        f"{status} {getattr(kind, '__name__', route.media_type)}"
        for status, kind in sorted(answers.items())
    )
    return (
        f"`{route.method} {route.path}`",
        route.role or "anybody",
        route.does,
        " or ".join(f"[`{name}`](#{name.lower()})" for name in sent),
        told,
    )


def http_bodies() -> str:
    """What may be sent, field by field, by the types that judge it."""
    kinds = dict.fromkeys(
        kind for route in ROUTES for kind in (*route.body, *filter(None, (route.query,)))
    )
    schemas = document(ROUTES)["components"]["schemas"]
    named = list(kinds)
    names = [kind.__name__ for kind in named]
    names += [name for name in schemas if name.endswith("Body") and name not in names]
    parts = []
    for name in names:
        fields = schemas[name].get("properties", {})
        needed = schemas[name].get("required", ())
        rows = (
            (f"`{each}`" + (" (needed)" if each in needed else ""), _schema_word(schema))
            for each, schema in fields.items()
        )
        text = _one_space(str(schemas[name].get("description", "")))
        parts += [f"### {name}", " ".join(text.split())]
        parts += [table(("field", "is"), rows)] if fields else []
    return "\n\n".join(parts)


def _schema_word(schema: Any) -> str:
    """Return a schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        found = " or ".join(_schema_word(each) for each in schema["anyOf"])
    elif "enum" in schema:
        found = " / ".join(f"`{each}`" for each in schema["enum"] if each is not None)
    elif schema.get("type") == "array":
        found = f"list of {_schema_word(schema.get('items', {}))}"
    else:
        found = {
            "string": "text",
            "integer": "whole number",
            "boolean": "true / false",
            "object": "object",
            "null": "null",
            "number": "number",
            None: "anything",
        }[schema.get("type")]
    bounds = [
        f"{word} {schema[name]:,}"
        for name, word in (
            *(("minimum", "from"), ("maximum", "to")),
            *(("maxLength", "at most"), ("minItems", "at least"), ("maxItems", "at most")),
        )
        if name in schema
    ]
    bounds += [f"like `{schema['pattern']}`"] if "pattern" in schema else []
    default = schema.get("default")
    bounds += [f"default `{default}`"] if default not in (None, "", [], {}) else []
    return f"{found} ({', '.join(bounds)})" if bounds else found


def http_problems() -> str:
    """The codes of what is refused before the pool is asked, and the statuses of all others."""
    rows = (
        (f"`{code}`", str(status), says, hint) for code, (status, says, hint) in REFUSALS.items()
    )
    own = table(("code", "status", "", "what helps"), rows)
    others = (
        (f"`{kind.code}`", str(status), _error_link(kind))
        for kind, status in STATUSES.items()
        if kind is not PoolError
    )
    return f"{own}\n\n{table(('code', 'status', 'and what is of its kind'), others)}"


def _error_link(kind: type[PoolError]) -> str:
    heading = FAMILIES.get(kind.__name__, kind.__name__)
    return f"[`{kind.__name__}`](errors.md#{heading.lower().replace(' ', '-')})"


def api(group: str) -> str:
    """What mkdocstrings makes of these names' docstrings."""
    return "\n\n".join(_directive(name) for name in API[group])


def _directive(name: str) -> str:
    home = next(home for home in _HOMES if name in home.__all__)
    return f"::: {home.__name__}.{name}"


def api_testing() -> str:
    """As above, of what tests may import."""
    return "\n\n".join(f"::: pool.testing.{name}" for name in sorted(pool.testing.__all__))


@attrs.frozen
class Part:
    """A generated part of a page."""

    page: str
    name: str
    make: Callable[[], str]


PARTS: Final = (
    Part("reference/settings.md", "settings", settings),
    Part("reference/errors.md", "errors", errors),
    Part("reference/errors.md", "entries", error_entries),
    Part("reference/events.md", "events", events),
    Part("reference/events.md", "edges", edges),
    Part("reference/cli.md", "commands", commands),
    Part("reference/cli.md", "shapes", shapes),
    Part("how-to/at-three-in-the-morning.md", "findings", findings),
    Part("reference/redis.md", "keys", redis_keys),
    Part("reference/scripts.md", "scripts", scripts),
    Part("reference/http.md", "routes", http_routes),
    Part("reference/http.md", "bodies", http_bodies),
    Part("reference/http.md", "problems", http_problems),
    Part("reference/api-jobs.md", "api", lambda: api("jobs")),
    Part("reference/api-maps.md", "api", lambda: api("maps")),
    Part("reference/api-sync.md", "api", lambda: api("sync")),
    Part("reference/api-streams.md", "api", lambda: api("streams")),
    Part("reference/api-rest.md", "api", lambda: api("rest")),
    Part("reference/api-rest.md", "testing", api_testing),
    Part("explanation/life-of-a-job.md", "transitions", transitions),
    Part("explanation/how-fast.md", "beside", figures.beside),
    Part("../README.md", "fast", figures.fast),
)


# Files that are generated as a whole.
FILES: Final[dict[str, Callable[[], str]]] = {
    "assets/life-of-a-job.svg": life.picture,
    **{f"findings/{rule.name}.md": partial(finding, rule) for rule in RULES},
}


def renewed(part: Part, text: str) -> str:
    """Return a page's text with this part as the code has it now."""
    form = re.compile(rf"(<!-- {part.name} -->\n).*?(<!-- /{part.name} -->)", re.DOTALL)
    assert len(form.findall(text)) == 1, f"{part.page} has no part {part.name}"
    return form.sub(lambda found: f"{found[1]}\n{part.make()}\n\n{found[2]}", text)


def main() -> int:
    """Write or check all parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if stale")
    is_check = parser.parse_args().check
    stale = []
    for name, make in FILES.items():
        path = DOCS / name
        if not path.is_file() or path.read_text("utf-8") != make():
            stale.append(f"{name}\n")
            if not is_check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(make(), "utf-8")
    for part in PARTS:
        path = DOCS / part.page
        before = path.read_text("utf-8")
        after = renewed(part, before)
        if after != before:
            stale.append(f"{part.page}: {part.name}\n")
            if not is_check:
                path.write_text(after, "utf-8")
    sys.stdout.writelines(stale)
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

"""`pool explain`: what the documentation says of an error or a finding, where it is not at hand."""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from pool import errors
from pool.errors import InvalidOption, PoolError, shown
from pool.ops.doctor import RULES
from pool.ops.findings import SEVERITIES, Rule, pages, plain
from pool.ops.terminal import write
from pool.ops.web.problems import REFUSALS

RULES_BY_NAME: Final = {rule.name: rule for rule in RULES}


def run(args: argparse.Namespace) -> int:
    """Carry out `pool explain`.

    Raises:
        InvalidOption: There is no such error; `problem` names those that are spelled alike.
    """
    told: Mapping[str, object]
    if (rule := RULES_BY_NAME.get(args.error)) is not None:
        told, lines = finding_facts(rule), finding_lines(rule)
    elif (code := _bare(args.error).upper()) in REFUSALS:
        told, lines = refusal_facts(code), refusal_lines(code)
    else:
        kind = find(args.error)
        told, lines = facts(kind), text(kind).split("\n")
    write([json.dumps({"v": 1, "ok": True, **told})] if args.json else lines)
    return 0


def _bare(word: str) -> str:
    return word.strip("[]")


def kinds() -> Iterator[type[PoolError]]:
    """Yield all errors in the order of their file: a family, then its leaves."""
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, PoolError):
            yield each


def find(word: str) -> type[PoolError]:
    """Return the error of this code or class name, whatever their case."""
    words = {name.lower(): kind for kind in kinds() for name in (kind.code, kind.__name__)}
    names = [*words, *RULES_BY_NAME, *(code.lower() for code in REFUSALS)]
    wanted = _bare(word).lower()
    if wanted in words:
        return words[wanted]
    near = dict.fromkeys(
        words[each].code if each in words else each.upper() if each.upper() in REFUSALS else each
        for each in difflib.get_close_matches(wanted, names)
    )
    problem = "it is no code, no class and no finding" + (
        f"; is it {' or '.join(near)}?" if near else ""
    )
    raise InvalidOption(option="CODE", value=shown(word), problem=problem)


def finding_facts(rule: Rule) -> dict[str, str]:
    """Return what there is to say of a finding."""
    page = pages()[rule.name]
    return {
        "finding": rule.name,
        "severity": rule.severity,
        "looks_at": rule.looks_at,
        "threshold": rule.threshold,
        "advice": rule.advice,
        "fix": rule.fix,
        "why": plain(page.why),
        "do": plain(page.do),
        "over": plain(page.over),
    }


def finding_lines(rule: Rule) -> list[str]:
    """Return it for people."""
    it = finding_facts(rule)
    article = "an" if rule.severity == "error" else "a"
    return [
        f"{rule.name}, {article} {rule.severity}: {SEVERITIES[rule.severity]}",
        *("", f"looks at  {it['looks_at']}", f"found     {it['threshold']}"),
        *("", it["why"]),
        *("", f"What to do: {it['do']}"),
        *(["", f"pool doctor --fix --yes mends it ({rule.fix})."] if rule.fix else []),
        *("", f"It is over: {it['over']}"),
    ]


def refusal_facts(code: str) -> dict[str, object]:
    """Return what there is to say of a refusal of the gateway."""
    status, title, hint = REFUSALS[code]
    return {"code": code, "status": status, "says": f"{title}.", "hint": hint}


def refusal_lines(code: str) -> list[str]:
    """Return it for people."""
    it = refusal_facts(code)
    return [
        f"[{code}], an answer of the gateway, with status {it['status']}",
        *("", str(it["says"])),
        *("", f"What to do: {it['hint']}."),
    ]


def facts(kind: type[PoolError]) -> dict[str, object]:
    """Return what there is to say of an error."""
    first, _, more = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    return {
        "code": kind.code,
        "class": kind.__name__,
        "family": kind.__mro__[1].__name__,
        "says": first,
        "more": more,
        "hint": kind.hint,
        "shell_hint": kind.shell_hint,
        "retryable": kind.retryable,
        "facts": {each.name: str(each.type) for each in attrs.fields(kind)},
    }


def text(kind: type[PoolError]) -> str:
    """Return it for people."""
    it = facts(kind)
    family = "the base of all" if kind is PoolError else f"a {it['family']}"
    parts = [f"{it['class']} [{it['code']}], {family}", it["says"], it["more"]]
    names = ", ".join(f"{name} ({of})" for name, of in it["facts"].items())  # type: ignore[attr-defined]
    parts.append(f"Its facts are {names}." if names else "")
    parts.append("The same call may be repeated." if it["retryable"] else "")
    parts.append(f"What to do: {it['hint']}." if it["hint"] else "")
    parts.append(f"On the command line: {it['shell_hint']}." if it["shell_hint"] else "")
    return "\n\n".join(str(part) for part in parts if part)

"""The table of routes as OpenAPI 3.1: schemas are those of the types that judge and tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from pool.names import KEY_BYTES_MAX
from pool.ops.web.bodies import ID, KEY, NAME
from pool.ops.web.problems import MEDIA_TYPE, REFUSALS, WebProblem, status_of
from pool.ops.web.routes import Repeats, WebRoute
from pool.version import __version__

_REF: Final = "#/components/schemas/{name}"
_PART: Final = re.compile(r"\{(\w+)\}")
_KEY: Final = {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "pattern": KEY}
_ID: Final = {"type": "string", "pattern": ID}
_PARTS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "key": (
        _KEY,
        f"The job's key, at most {KEY_BYTES_MAX:,} bytes in UTF-8; a / in it is sent as %2F.",
    ),
    "job_id": (_ID, "The job's id; one called as a verb (stop) with a letter as %73."),
    "batch": (_ID, "The batch's id."),
    "schedule": ({"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,96}$"}, "The schedule's name."),
    "member": ({"type": "string", "pattern": NAME}, "Of node or worker."),
}
_HEADERS: Final = {
    "Idempotency-Key": "By which a repeat is known, for an hour after the job's end; of many jobs "
    "each is by it and its key, so a part of them may be sent again. Refused beside a job_id, or "
    "another idempotency_key, in the body.",
    "Last-Event-ID": "The id of the last event that was seen: what follows is told.",
}
_REPEATS: Final[dict[Repeats, str]] = {
    "same": "Sent again it does no harm; an Idempotency-Key is not needed.",
    "known": "Sent again it is known by its Idempotency-Key.",
    "again": "Sent again it is done again; an Idempotency-Key is refused:",
}
_EVERYBODY: Final = ("WEBREQUEST", "WEBORIGIN", "WEBPATH", "WEBMETHOD", "WEBRATE", "WEBFAULT")
_KNOWN: Final = ("WEBSECRET", "WEBROLE")
_SENT: Final = ("WEBSLOW", "WEBTOOLARGE", "WEBMEDIA")
_WAITS: Final = ("WEBBUSY",)


def document(routes: Sequence[WebRoute], root: str = "") -> dict[str, Any]:
    """Return the whole document, of what stands below a path."""
    kinds = dict.fromkeys(kind for route in routes for kind in _kinds(route))
    kinds[WebProblem] = None
    found, components = msgspec.json.schema_components(list(kinds), ref_template=_REF)
    schemas, components = dict(zip(kinds, found, strict=True)), _plainer(components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, schemas, components
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pool",
            "version": __version__,
            "description": "Jobs by key, one owner per key: the control plane of a pool, and its "
            "workers in any language.",
        },
        "servers": [{"url": quote(root) or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "secret": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A secret of a role: admin may what operate may, and that what "
                    "read may; worker stands apart. Without secrets programs of the gateway's own "
                    "machine are answered.",
                }
            },
        },
    }


def _plainer(schema: Any) -> Any:
    """Return a schema as generators of clients read it.

    Every list names its `items`: openapi-python-client drops a schema where they are missing.  A
    list whose items are all of one kind has that kind once, with the number of items as limits.
    """
    if isinstance(schema, list):
        return [_plainer(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _plainer(each) for name, each in schema.items()}
    first, *others = found.get("prefixItems", [None])
    if first is not None and all(each == first for each in others):
        del found["prefixItems"]
        found["items"] = first
    elif found.get("type") == "array" and "prefixItems" not in found:
        found.setdefault("items", {})
    return found


def statuses(route: WebRoute) -> list[int]:
    """Return the statuses of the problems that a route may tell."""
    is_read = route.body or route.method == "DELETE"
    codes = [*_EVERYBODY, *(_KNOWN if route.role else ()), *(_SENT if is_read else ())]
    codes += _WAITS if route.waits or route.media_type == "text/event-stream" else ()
    found = {REFUSALS[code][0] for code in codes} | {status_of(kind) for kind in route.may}
    if route.may:
        found |= {503, 504}  # of what may have been done in time, or not
    return sorted(found - set(route.also) - {route.status})


def _kinds(route: WebRoute) -> Iterator[Any]:
    yield from route.body
    if route.query is not None:
        yield route.query
    for kind in (route.answer, *route.also.values()):
        if kind is not None:
            yield kind


def _operation(
    route: WebRoute, schemas: dict[Any, dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.does,
        "tags": [route.group],
        "security": [{"secret": []}] if route.role else [],
        "responses": dict(_responses(route, schemas)),
    }
    if route.role:
        told["description"] = f"Role: {route.role}."
        if route.method != "GET":
            told["description"] += f" {_REPEATS[route.repeats]} {route.repeat_hint}".rstrip()
        told["x-role"] = route.role
    parameters = [*_parameters(route, components)]
    if parameters:
        told["parameters"] = parameters
    if route.body:
        each = [schemas[kind] for kind in route.body]
        schema = each[0] if len(each) == 1 else {"oneOf": each}
        is_needed = any(components[kind.__name__].get("required", ()) for kind in route.body)
        told["requestBody"] = {
            "required": is_needed,
            "content": {"application/json": {"schema": schema}},
        }
    return told


def _parameters(route: WebRoute, components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in _PART.findall(route.path):
        schema, text = _PARTS[name]
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": schema,
            "description": text,
        }
    if route.query is not None:
        query = components[route.query.__name__]
        for name, schema in query["properties"].items():
            yield {"name": name, "in": "query", "required": False, "schema": _one(schema)}
    for name in route.headers:
        yield {
            "name": name,
            "in": "header",
            "required": False,
            "schema": {"type": "string", "maxLength": 256},
            "description": _HEADERS[name],
        }


def _one(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: what may be left out is never null."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    found = {name: each for name, each in schema.items() if name != "anyOf"}
    if found.get("default", 0) is None:
        del found["default"]
    return found | kinds[0] if len(kinds) == 1 else schema


def _responses(
    route: WebRoute, schemas: dict[Any, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    told = {route.status: route.answer, **route.also}
    for status, kind in sorted(told.items()):
        schema = {"type": "string"} if kind is None else schemas[kind]
        yield (
            str(status),
            {
                "description": HTTPStatus(status).phrase,
                "content": {route.media_type: {"schema": schema}},
            },
        )
    problem = {"$ref": _REF.format(name=WebProblem.__name__)}
    for status in statuses(route):
        yield (
            str(status),
            {
                "description": HTTPStatus(status).phrase,
                "content": {MEDIA_TYPE: {"schema": problem}},
            },
        )

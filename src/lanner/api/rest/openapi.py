"""The OpenAPI 3.1 document, made from the route table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from lanner import limits
from lanner.api.deduplication import KEY_BYTES_MAX
from lanner.api.rest.group_shapes import MEMBER_SCHEMA
from lanner.api.rest.operations import Operation
from lanner.api.rest.shapes import NAME_SCHEMA, RULES, NoBody, NoQuery, Problem
from lanner.api.rest.system import software_version
from lanner.errors import (
    BadGateway,
    DeadlineExceeded,
    LannerError,
    MessageTooLarge,
    NotLeader,
    Overloaded,
    RequestTimeout,
    ServerError,
    ServiceUnavailable,
    ValidationError,
)

_REF: Final = "#/components/schemas/{name}"
_PATH_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "topic": NAME_SCHEMA,
    "group": NAME_SCHEMA,
    "broker": NAME_SCHEMA,
    "member": MEMBER_SCHEMA,
    "partition": {"type": "integer", "minimum": 0, "maximum": limits.PARTITIONS_MAX - 1},
}
_EVERYWHERE: Final[tuple[type[LannerError], ...]] = (
    ValidationError,
    ServerError,
    BadGateway,
    ServiceUnavailable,
    NotLeader,
    DeadlineExceeded,
)


def build_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document of these operations."""
    types: list[Any] = [Problem]
    for operation in operations:
        types += [kind for kind in (operation.reply, operation.body) if kind is not None and kind is not NoBody]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = dict(zip((str(kind) for kind in types), schemas, strict=True))
    for name, rule in RULES.items():
        _merge(components[name], rule)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lanner",
            "version": software_version(),
            "description": "A durable, priority-aware message queue. Errors are `{type, message, details}`.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _merge(schema: dict[str, Any], rule: dict[str, Any]) -> None:
    for name, value in rule.items():
        if isinstance(value, dict) and isinstance(schema.get(name), dict):
            _merge(schema[name], value)
        else:
            schema[name] = value


def _operation(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": _parameters(operation),
        "responses": _responses(operation, schema_of),
    }
    if operation.description:
        described["description"] = operation.description
    if operation.body is not NoBody:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[str(operation.body)]}},
        }
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if operation.query is not NoQuery:
        (_, components) = msgspec.json.schema_components([operation.query], ref_template=_REF)
        shape = components[operation.query.__name__]
        for name, schema in shape["properties"].items():
            parameters.append({"name": name, "in": "query", "required": name in shape["required"], "schema": schema})
    for name, meaning in operation.headers.items():
        schema = {"type": "string", "pattern": f"^[!-~]{{1,{KEY_BYTES_MAX}}}$"}
        parameters.append({"name": name, "in": "header", "required": False, "description": meaning, "schema": schema})
    return parameters


def _responses(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": HTTPStatus(operation.status).phrase}
    if operation.reply is not None:
        good["content"] = {operation.content_type: {"schema": schema_of[str(operation.reply)]}}
    responses = {str(operation.status): good}
    reading = () if operation.body is NoBody else (RequestTimeout, MessageTooLarge, Overloaded)
    by_status: dict[int, list[type[LannerError]]] = {}
    for error in (*_EVERYWHERE, *reading, *operation.errors):
        by_status.setdefault(error.http_status, []).append(error)
    for status, errors in sorted(by_status.items()):
        responses[str(status)] = _problem(errors, schema_of)
    return responses


def _problem(errors: Sequence[type[LannerError]], schema_of: dict[str, Any]) -> dict[str, Any]:
    described = [f"{error.__name__}: {(error.__doc__ or '').strip()}" for error in dict.fromkeys(errors)]
    return {
        "description": " ".join(described),
        "content": {"application/json": {"schema": schema_of[str(Problem)]}},
    }

"""The API as an OpenAPI 3.1 document, made of the table of endpoints and of the structs they answer with.

In: the table. Out: the document as plain data, the same every time.
Invariant: nothing is written by hand that the code says: paths, parameters, answers and the shape of errors all come
from it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import __version__
from fallow.doors.api import answering
from fallow.doors.api.endpoints import Endpoint, Parameter

PATH: Final = "/api/openapi.json"
_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    "400": "A parameter is wrong.", "401": "Nobody knows who asks.", "403": "Who asks may not.",
    "404": "There is no such thing.", "503": "There is nothing to tell yet.",
}


def make_document(table: Sequence[Endpoint]) -> dict[str, Any]:
    types = [*(endpoint.returns for endpoint in table), answering.ErrorAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    paths = {
        endpoint.path: {"get": _operation(endpoint, schema, schemas[-1])}
        for endpoint, schema in zip(table, schemas, strict=False)
    }
    about = "What fallow knows and did. Instants are RFC 3339 in UTC, spans seconds, ratios 0 to 1; null: not known."
    return {
        "openapi": "3.1.0", "info": {"title": "fallow", "version": __version__, "description": about}, "paths": paths,
        "components": {"schemas": {name: _tidy(schema) for name, schema in sorted(components.items())}},
    }


def _operation(endpoint: Endpoint, schema: Mapping[str, Any], error: Mapping[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "200": {"description": endpoint.summary, "content": {answering.JSON: {"schema": schema}}},
        "304": {"description": "As it was: the ETag is the same."},
    }
    for status, words in _ERRORS.items():
        answers[status] = {"description": words, "content": {answering.JSON: {"schema": error}}}
    return {
        "operationId": endpoint.answer.__name__, "summary": endpoint.summary, "responses": answers,
        "parameters": list(map(_parameter, endpoint.parameters)),
    }


def _parameter(each: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer" if each.is_number else "string"}
    if each.choices:
        schema["enum"] = list(each.choices)
    if each.default is not None:
        schema["default"] = int(each.default) if each.is_number else each.default
    where = "path" if each.in_path else "query"
    return {"name": each.name, "in": where, "required": each.in_path, "description": each.help, "schema": schema}


def _tidy(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without titles, which are the names once more; a description on one line."""
    found = {key: value for key, value in schema.items() if key != "title"}
    if "description" in found:
        found["description"] = " ".join(str(found["description"]).split())
    return found



"""The API as an OpenAPI 3.1 document, made of the tables of what is read and written, and of the structs they take and
answer with.

In: the tables. Out: the document as plain data, the same every time.
Invariant: nothing is written by hand that the code says: paths, parameters, answers and the shape of errors all come
from it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import __version__
from fallow.doors.api import refusals, sessions
from fallow.doors.api.bodies import WriteEndpoint
from fallow.doors.api.questions import OF_ALERT, ONE, Endpoint, Parameter

PATH: Final = "/api/openapi.json"
_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    "400": "Something that was asked is wrong.", "401": "Nobody knows who asks.", "403": "Who asks may not.",
    "404": "There is no such thing.", "429": "Too often.", "502": "Whom we asked did not answer well.",
    "503": "There is nothing to tell yet, or somebody who must be asked is away.",
}
_WRITE_ERRORS: Final = {
    **_ERRORS, "409": "As it stands now it cannot be done.", "413": "The body is too long.",
    "415": "The body is not JSON.",
}
_WHO: Final[list[dict[str, list[str]]]] = [{"token": []}, {"session": []}, {}]  # in mode email, nobody


def make_document(table: Sequence[Endpoint], writes: Sequence[WriteEndpoint] = ()) -> dict[str, Any]:
    asked = [write.asks for write in writes if write.asks is not None]
    answered = [write.returns for write in writes if write.returns is not None]
    types = [refusals.ErrorAnswer, *(endpoint.returns for endpoint in table), *asked, *answered]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, Any] = {endpoint.path: {"get": _operation(endpoint, by_type)} for endpoint in table}
    for write in writes:
        paths.setdefault(write.path, {})[write.method.lower()] = _write_operation(write, by_type)
    about = "What fallow knows and did. Instants are RFC 3339 in UTC, spans seconds, ratios 0 to 1; null: not known."
    return {
        "openapi": "3.1.0", "info": {"title": "fallow", "version": __version__, "description": about}, "paths": paths,
        "security": _WHO, "components": {
            "schemas": {name: _tidy(schema) for name, schema in sorted(components.items())},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": sessions.SESSION},
            },
        },
    }


def _operation(endpoint: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    responses = {
        "200": _answer(endpoint.summary, schemas[repr(endpoint.returns)]),
        "304": {"description": "As it was: the ETag is the same."}, **_errors(_ERRORS, schemas),
    }
    if endpoint.refusal is not None:
        responses["400"] = _answer(_ERRORS["400"], {"anyOf": [
            msgspec.json.schema_components([endpoint.refusal], ref_template=_REF)[1][endpoint.refusal.__name__],
            schemas[repr(refusals.ErrorAnswer)],
        ]})
    return {
        "operationId": endpoint.answer.__name__, "summary": endpoint.summary, "responses": responses,
        "parameters": list(map(_parameter, endpoint.parameters)),
    }


def _write_operation(write: WriteEndpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    done = {"description": "Done."} if write.returns is None else _answer("Done.", schemas[repr(write.returns)])
    named = [one for one in (*ONE, *OF_ALERT) if f"{{{one.name}}}" in write.path]
    found = {
        "operationId": write.act.__name__.strip("_"), "summary": write.summary,
        "parameters": list(map(_parameter, named)),
        "responses": {str(write.status): done, **_errors(_WRITE_ERRORS, schemas)},
    }
    if write.asks is not None:
        found["requestBody"] = {"required": True, "content": {refusals.JSON: {"schema": schemas[repr(write.asks)]}}}
    return found


def _answer(words: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {refusals.JSON: {"schema": schema}}}


def _errors(said: Mapping[str, str], schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {status: _answer(words, schemas[repr(refusals.ErrorAnswer)]) for status, words in said.items()}


def _parameter(each: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if each.most is not None:
        schema = {"type": "integer", "minimum": each.least, "maximum": each.most}
    if each.choices:
        schema["enum"] = list(each.choices)
    if each.pattern is not None:
        schema["pattern"] = each.pattern
    if each.form is not None:
        schema["format"] = each.form
    if each.default is not None:
        schema["default"] = each.default if each.most is None else int(each.default)
    where, is_needed = "path" if each.in_path else "query", each.in_path or each.is_required
    return {"name": each.name, "in": where, "required": is_needed, "description": each.help, "schema": schema}


def _tidy(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without titles, which are the names once more; a description on one line."""
    found = {key: value for key, value in schema.items() if key != "title"}
    if "description" in found:
        found["description"] = " ".join(str(found["description"]).split())
    return found

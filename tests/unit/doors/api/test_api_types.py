"""The dashboard's types are the API's: made of its document, the same every time, nothing left out."""

import re

from docs import api_types

from fallow.doors.api import endpoints, openapi


def test_every_struct_is_a_type_and_every_type_that_is_named_is_there():
    text = api_types.write_types()
    made = re.findall(r"^export (?:type|const) (\w+) =", text, re.MULTILINE)
    assert len(made) == len(set(made))
    schemas = openapi.make_document(endpoints.ENDPOINTS)["components"]["schemas"]
    assert {api_types.NAMES.get(name, name) for name in schemas} <= set(made)
    assert set(api_types.NAMES) <= set(schemas)
    used = set(re.findall(r"\b([A-Z]\w+)\b", re.sub(r"/\*\*.*?\*/|//.*|'[^']*'", "", text.replace('"', "'"))))
    assert used - set(made) == {"Record"}


def test_null_arrays_and_words_are_as_the_server_says():
    text = api_types.write_types()
    assert "  idleSince: string | null;" in text
    assert "  values: (number | null)[];" in text
    assert "  state: State;" in text
    assert 'export type Step = "notice" | "pause" | "keepEnds" | "freezeEnds";' in text


def test_the_types_of_the_pages_are_these():
    assert api_types.write_types() == api_types.write_types()
    if api_types.TARGET.exists():
        assert api_types.TARGET.read_text() == api_types.write_types(), "python -m docs.api_types writes it anew"

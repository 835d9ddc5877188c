"""Pointers read, prune and patch as RFC 6901 and RFC 7386 say, with Kubernetes' habit of dropping nulls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fallow.model import pointers

LEAVES = some.one_of(some.booleans(), some.integers(0, 9), some.text("ab", max_size=2))
KEYS = some.sampled_from(["a", "b", "c/d", "e~f"])
TREES = some.recursive(LEAVES, lambda below: some.dictionaries(KEYS, below, max_size=3), max_leaves=8)
OBJECTS = some.dictionaries(KEYS, TREES, max_size=4)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/spec/replicas", 3),
        ("/spec/roles/name=b/n", 2),
        ("/spec/roles/name=c/n", None),
        ("/spec/roles/1/n", 2),
        ("/spec/roles/2/n", None),
        ("/spec/roles/\u00b2/n", None),
        (f"/spec/roles/{'9' * 5000}/n", None),
        ("/metadata/annotations/a.b~1c", "x"),
        ("/spec/none/deep", None),
    ],
    ids=[
        "field", "in-list", "not-in-list", "by-index", "past-the-end", "squared", "book-of-digits", "escaped", "absent",
    ],
)
def test_a_pointer_reads_what_it_names(pointer: str, value: object) -> None:
    roles = [{"name": "a", "n": 1}, {"name": "b", "n": 2}]
    body = {"spec": {"replicas": 3, "roles": roles}, "metadata": {"annotations": {"a.b/c": "x"}}}
    assert pointers.read(body, pointer) == value


def test_a_path_that_is_no_pointer_is_refused() -> None:
    with pytest.raises(ValueError, match="must begin with /"):
        pointers.read({}, "spec.replicas")


@pytest.mark.parametrize(
    ("body", "highest"),
    [
        ({"spec": {}}, "/spec/runPolicy"),
        ({}, "/spec/runPolicy"),
        ({"spec": {"runPolicy": {}}}, "/spec/runPolicy/suspend"),
        ({"spec": {"runPolicy": {"suspend": True}}}, "/spec/runPolicy/suspend"),
    ],
    ids=["no-parent", "nothing", "empty-parent", "present"],
)
def test_the_highest_absent_parent_is_found(body: dict[str, Any], highest: str) -> None:
    assert pointers.highest_absent(body, "/spec/runPolicy/suspend") == highest


def test_pruning_keeps_parents_that_exist_so_that_absent_ones_can_be_told() -> None:
    body = {"spec": {"runPolicy": {"cleanPodPolicy": "None"}, "template": {"big": 1}}, "status": {"x": 1}}
    assert pointers.prune(
        body, ["/spec/runPolicy/suspend", "/status/conditions"]
    ) == {"spec": {"runPolicy": {}}, "status": {}}


@given(OBJECTS, some.sampled_from(["/a", "/a/b", "/b/c~1d", "/e~0f/a/b"]), LEAVES)
def test_what_a_patch_writes_is_read_back_and_nothing_else_changes(
    body: dict[str, Any], pointer: str, value: Any
) -> None:
    patched = pointers.apply_merge_patch(body, pointers.merge_patch(body, {pointer: value}))
    assert pointers.read(patched, pointer) == value
    top = pointers.parts(pointer)[0]
    assert {
        key: item for key, item in patched.items() if key != top
    } == {key: item for key, item in body.items() if key != top}


def test_a_list_is_replaced_as_a_whole_with_its_other_content_kept() -> None:
    body = {"spec": {"roles": [{"name": "a", "spec": {"replicas": 2, "x": 1}}, {"name": "b", "spec": {"replicas": 3}}]}}
    fields = {"/spec/roles/name=a/spec/replicas": 0, "/spec/roles/name=b/spec/replicas": None}
    patch = pointers.merge_patch(body, fields)
    assert patch == {"spec": {"roles": [{"name": "a", "spec": {"replicas": 0, "x": 1}}, {"name": "b", "spec": {}}]}}

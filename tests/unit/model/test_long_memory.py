"""What stands on the Lease, read and written."""

from fallow import names
from fallow.model import cluster, long_memory


def ref(kind: str, group: str = "apps.kruise.io") -> cluster.Ref:
    return cluster.Ref(group, "v1alpha1", kind, "ml", "llm", "u")


def test_kinds_that_were_paused_are_added_once() -> None:
    first = long_memory.add_kinds({}, [ref("CloneSet"), ref("CloneSet")])
    assert first == {names.PAUSED_KINDS: "apps.kruise.io/v1alpha1/CloneSet"}
    assert long_memory.add_kinds(first, [ref("CloneSet")]) == {}
    both = long_memory.add_kinds(first, [ref("Old", "example.com")])
    known = (("apps.kruise.io", "v1alpha1", "CloneSet"), ("example.com", "v1alpha1", "Old"))
    assert long_memory.read_kinds(both) == known


def test_the_list_of_kinds_is_bounded_and_odd_words_in_it_are_nothing() -> None:
    many = long_memory.add_kinds({}, [ref(f"Kind{number}") for number in range(100)])
    found = long_memory.read_kinds(many)
    assert (len(found), found[-1][2]) == (long_memory.MOST_KINDS, "Kind99")
    assert long_memory.read_kinds({names.PAUSED_KINDS: "CloneSet a/b a/b/c/d"}) == ()

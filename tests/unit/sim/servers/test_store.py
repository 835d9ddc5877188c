"""The store: what every Kubernetes object has, who owns which field, what a deleted owner leaves behind, what watchers
are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.model import units
from fallow.sim.servers import ownership
from fallow.sim.servers import store as stores

NOON = units.parse_instant("2026-11-16T12:00:00Z")
Object = dict[str, Any]


def thing(name: str = "a", kind: str = "Deployment", group: str = "apps/v1", **parts: Any) -> Object:
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, "namespace": "ml"}, **parts}


def child_of(name: str, *owners: stores.Entry) -> Object:
    references = [
        {
            "apiVersion": owner.object["apiVersion"], "kind": owner.key.kind, "name": owner.key.name,
            "uid": owner.object["metadata"]["uid"],
        }
        for owner in owners
    ]
    made = thing(name, "Pod", "v1")
    return {**made, "metadata": {**made["metadata"], "ownerReferences": references}}


@pytest.fixture
def store() -> stores.Store:
    return stores.Store(lambda: NOON, history=5)


def names_of(store: stores.Store, kind: str = "Pod", group: str = "") -> list[str]:
    return [entry.key.name for entry in store.entries(group, kind)]


# ---- objects ---------------------------------------------------------------------------------------------------------


def test_a_new_object_gets_what_every_object_has(store: stores.Store) -> None:
    metadata = store.create(thing(spec={"replicas": 3})).object["metadata"]
    assert (
        metadata["creationTimestamp"], metadata["generation"], metadata["resourceVersion"]
    ) == ("2026-11-16T12:00:00Z", 1, "2")
    assert len(metadata["uid"]) == 36


def test_the_same_seed_gives_the_same_uids() -> None:
    uids = [stores.Store(lambda: NOON, seed=seed).create(thing()).object["metadata"]["uid"] for seed in (1, 1, 2)]
    assert uids[0] == uids[1] != uids[2]


@pytest.mark.parametrize(
    ("kind", "group", "patch", "generation"),
    [
        ("Deployment", "apps/v1", {"spec": {"replicas": 0}}, 2),
        ("Deployment", "apps/v1", {"metadata": {"annotations": {"a": "b"}}}, 2),
        ("StatefulSet", "apps/v1", {"metadata": {"annotations": {"a": "b"}}}, 1),
        ("Deployment", "apps/v1", {"status": {"replicas": 0}}, 1),
        ("Notebook", "kubeflow.org/v1", {"spec": {"x": 1}}, 2),
        ("ConfigMap", "v1", {"data": {"x": "y"}}, None),
    ],
    ids=["spec", "annotations", "annotations-of-others", "status", "custom", "not-counted"],
)
def test_the_generation_counts_what_is_asked(
    store: stores.Store, kind: str, group: str, patch: Object, generation: int | None
) -> None:
    made = store.create(thing(kind=kind, group=group, spec={"replicas": 1}))
    assert store.patch(made.key, patch).object["metadata"].get("generation") == generation


def test_a_write_that_changes_nothing_is_no_change(store: stores.Store) -> None:
    made = store.create(thing(spec={"replicas": 3}))
    assert store.patch(made.key, {"spec": {"replicas": 3}}) is made
    assert store.version == made.version


def test_what_nobody_may_change(store: stores.Store) -> None:
    made = store.create(thing(spec={"replicas": 3}))
    odd = {"uid": "x", "creationTimestamp": "2001-01-01T00:00:00Z", "resourceVersion": "1", "generation": 9}
    assert store.patch(made.key, {"metadata": odd}) is made


@pytest.mark.parametrize(("field", "value"), [("uid", "another"), ("version", "1")])
@pytest.mark.parametrize("verb", ["write", "delete"])
def test_guards(store: stores.Store, field: str, value: str, verb: str) -> None:
    made = store.create(thing())
    writer = stores.Writer(**{field: value})
    with pytest.raises(stores.Overtaken):
        store.delete(made.key, writer) if verb == "delete" else store.patch(made.key, {"spec": {}}, writer)
    assert store.get(made.key) is made


def test_a_dry_run_leaves_nothing_behind(store: stores.Store) -> None:
    told: list[stores.Change] = []
    made = store.create(thing(spec={"replicas": 3}))
    store.subscribe(told.append)
    dry = stores.Writer("fallow", dry_run=True)
    assert store.patch(made.key, {"spec": {"replicas": 0}}, dry).object["spec"]["replicas"] == 0
    store.create(thing("b"), dry)
    store.delete(made.key, dry)
    assert (store.get(made.key), told, names_of(store, "Deployment", "apps")) == (made, [], ["a"])


def test_only_absent_and_taken_names_are_refused(store: stores.Store) -> None:
    made = store.create(thing())
    with pytest.raises(stores.Exists):
        store.create(thing())
    store.delete(made.key)
    with pytest.raises(stores.NotStored):
        store.delete(made.key)
    assert store.create(thing()).object["metadata"]["uid"] != made.object["metadata"]["uid"]


def test_entries_are_in_the_order_of_etcd(store: stores.Store) -> None:
    for namespace, name in [("a", "z"), ("a-b", "a"), ("a", "b")]:
        store.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}})
    assert [entry.key.path for entry in store.entries("", "Pod")] == ["a-b/a", "a/b", "a/z"]
    assert [entry.key.name for entry in store.entries("", "Pod", "a")] == ["b", "z"]


# ---- deletion --------------------------------------------------------------------------------------------------------


def test_a_deleted_owner_takes_its_children_along(store: stores.Store) -> None:
    deployment = store.create(thing())
    replica_set = store.create({**child_of("rs", deployment), "apiVersion": "apps/v1", "kind": "ReplicaSet"})
    store.create(child_of("p1", replica_set))
    store.create(child_of("p2", replica_set))
    store.create(thing("alone", "Pod", "v1"))
    store.delete(deployment.key)
    assert (names_of(store), names_of(store, "ReplicaSet", "apps")) == (["alone"], [])


def test_a_child_lives_as_long_as_one_of_its_owners(store: stores.Store) -> None:
    first, second = store.create(thing("a")), store.create(thing("b"))
    store.create(child_of("p", first, second))
    store.delete(first.key)
    assert names_of(store) == ["p"]
    store.delete(second.key)
    assert names_of(store) == []


def test_orphans_stay(store: stores.Store) -> None:
    owner = store.create(thing())
    store.create(child_of("p", owner))
    store.delete(owner.key, orphan=True)
    assert names_of(store) == ["p"]


def test_a_namespace_takes_all_that_is_in_it(store: stores.Store) -> None:
    space = store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    store.create(thing("p", "Pod", "v1"))
    store.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q", "namespace": "other"}})
    store.delete(space.key)
    assert names_of(store) == ["q"]


def test_finalizers_hold_an_object(store: stores.Store) -> None:
    made = store.create({**thing(), "metadata": {"name": "a", "namespace": "ml", "finalizers": ["x/y"]}})
    marked = store.delete(made.key)
    assert marked.object["metadata"]["deletionTimestamp"] == "2026-11-16T12:00:00Z"
    assert store.delete(made.key) is marked
    store.patch(made.key, {"metadata": {"finalizers": None}})
    assert store.find(made.key) is None


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_listeners_hear_in_order_even_of_what_a_listener_does(store: stores.Store) -> None:
    told: list[tuple[str, str]] = []

    def react(change: stores.Change) -> None:
        if change.type == "ADDED":
            store.patch(change.entry.key, {"status": {"seen": True}})

    store.subscribe(react, ("apps", "Deployment"))
    store.subscribe(lambda change: told.append((change.type, change.by)))
    made = store.create(thing(), stores.Writer("user"))
    store.delete(made.key, stores.Writer("admin"))
    assert told == [("ADDED", "user"), ("MODIFIED", ""), ("DELETED", "admin")]


def test_a_subscription_ends(store: stores.Store) -> None:
    told: list[stores.Change] = []
    store.subscribe(told.append)()
    store.create(thing())
    assert told == []


def test_history_is_bounded_and_says_so(store: stores.Store) -> None:
    made = store.create(thing(spec={"n": 0}))
    for number in range(1, 8):
        store.patch(made.key, {"spec": {"n": number}})
    later = store.changes_since("apps", "Deployment", store.version - 3)
    assert [change.entry.object["spec"]["n"] for change in later] == [5, 6, 7]
    with pytest.raises(stores.TooOld):
        store.changes_since("apps", "Deployment", made.version)
    store.forget_history()
    assert store.changes_since("apps", "Deployment", store.version) == []
    with pytest.raises(stores.TooOld):
        store.changes_since("apps", "Deployment", store.version - 1)


def test_bytes_are_encoded_once_per_version(store: stores.Store) -> None:
    made = store.create(thing(spec={"replicas": 3}))
    assert made.body is made.body
    assert store.patch(made.key, {"spec": {"replicas": 0}}).body != made.body


# ---- owners of fields ------------------------------------------------------------------------------------------------


def owners(entry: stores.Entry) -> dict[str, Object]:
    return {one["manager"]: one["fieldsV1"] for one in entry.object["metadata"].get("managedFields") or []}


def test_a_changed_field_is_the_changers_alone(store: stores.Store) -> None:
    made = store.create(thing(spec={"replicas": 3, "paused": False}), stores.Writer("user"))
    assert owners(made) == {"user": {"f:spec": {"f:paused": {}, "f:replicas": {}}}}
    changed = store.patch(made.key, {"spec": {"replicas": 0}}, stores.Writer("fallow"))
    assert owners(changed) == {"user": {"f:spec": {"f:paused": {}}}, "fallow": {"f:spec": {"f:replicas": {}}}}
    gone = store.patch(made.key, {"spec": {"paused": None}}, stores.Writer("other"))
    assert owners(gone) == {"fallow": {"f:spec": {"f:replicas": {}}}}


def test_the_world_writes_without_owning(store: stores.Store) -> None:
    made = store.create(thing(spec={"replicas": 3}), stores.Writer("user"))
    assert owners(store.patch(made.key, {"status": {"replicas": 3}})) == owners(made)


def applied(live: Object, manager: str, force: bool = False, custom: bool = False, **parts: Any) -> Object:
    return ownership.apply(live, thing(**parts), manager, time="2026-11-16T12:00:00Z", custom=custom, force=force)


def test_an_apply_over_another_value_is_a_conflict_unless_forced() -> None:
    live = applied({}, "bob", spec={"replicas": 3})
    with pytest.raises(ownership.Conflicts) as caught:
        applied(live, "al", spec={"replicas": 5})
    assert caught.value.fields == (("bob", "apps/v1", ".spec.replicas"),)
    forced = applied(live, "al", force=True, spec={"replicas": 5})
    assert forced["spec"] == {"replicas": 5}
    assert [one["manager"] for one in forced["metadata"]["managedFields"]] == ["al"]


def test_two_may_apply_the_same_value_and_the_last_to_let_go_removes_it() -> None:
    both = applied(applied({}, "bob", spec={"replicas": 3, "paused": True}), "al", spec={"replicas": 3})
    one = applied(both, "bob", spec={"paused": True})
    assert one["spec"] == {"replicas": 3, "paused": True}
    assert applied(one, "al", spec={})["spec"] == {"paused": True}


@pytest.mark.parametrize(
    ("custom", "names"), [(False, ["main", "side"]), (True, ["side"])], ids=["by-key", "as-a-whole"]
)
def test_lists_of_containers(custom: bool, names: list[str]) -> None:
    live = {**thing(), "spec": {"containers": [{"name": "main"}]}}
    merged = applied(live, "bob", custom=custom, spec={"containers": [{"name": "side"}]})
    assert [one["name"] for one in merged["spec"]["containers"]] == names


values = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.booleans(),
    lambda below: st.dictionaries(
        st.text("xyz", min_size=1, max_size=2), below, max_size=3
    ) | st.lists(st.integers(0, 2), max_size=2),
    max_leaves=8,
)
specs = st.dictionaries(st.sampled_from(["replicas", "paused", "template", "suspend"]), values, max_size=4)


@given(specs, specs)
def test_whoever_applies_gets_what_they_said_and_may_say_it_again(first: Object, second: Object) -> None:
    live = applied({}, "bob", spec=first)
    merged = applied(live, "al", force=True, spec=second)
    again = applied(merged, "al", force=True, spec=second)
    assert again == merged
    assert applied(merged, "bob", force=True, spec=first)["spec"].keys() >= first.keys()


@given(specs, specs)
def test_every_changed_field_has_exactly_one_owner(first: Object, second: Object) -> None:
    store = stores.Store(lambda: NOON)
    made = store.create(thing(spec=first), stores.Writer("bob"))
    written = store.write(made.key, thing(spec=second), stores.Writer("al"))
    fields = [set(leaves(one)) for one in owners(written).values()]
    assert sum(map(len, fields)) == len(set().union(*fields))
    assert store.write(made.key, thing(spec=second), stores.Writer("eve")) is written


def leaves(fields: Object, path: str = "") -> list[str]:
    if not fields:
        return [path]
    return [leaf for name, below in fields.items() for leaf in leaves(below, f"{path}/{name}")]

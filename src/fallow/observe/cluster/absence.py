"""Why what somebody named is not among the workloads we see: no such kind, namespace or name, no GPU, or it is hidden.

In: a mirror that was filled, and the words as they were typed. Out: one sentence, with what may have been meant. Here
the server is asked about the one object itself: only after nothing was found, so that it may take its time.
Invariant: "there is none" is said only where the server said so.
"""

import contextlib
from collections.abc import Sequence

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, kinds, spelling
from fallow.model.seen import Absent
from fallow.observe.cluster import mirror, owners


async def explain_namespace(seen: mirror.Mirror, namespace: str) -> str | None:
    """None: it is there, or may be."""
    if not isinstance(seen.namespaces.find(namespace), Absent):
        return None
    return await _name_missing(seen.api, namespace)


async def ask_namespace(api: kube.Api, namespace: str) -> str | None:
    """The same by the server alone, for who has no mirror."""
    try:
        await api.get(kube.NAMESPACES, None, namespace)
    except errors.NotFound:
        return await _name_missing(api, namespace)
    except errors.ClientError:
        return None
    return None


async def _name_missing(api: kube.Api, namespace: str) -> str:
    known = dict[str, str]()
    with contextlib.suppress(errors.ClientError):
        pages = api.list_pages(kube.NAMESPACES, item=kube.BareObject, metadata_only=True)
        known = {each.metadata.name: each.metadata.name async for page in pages for each in page.items}
    return f"there is no namespace {namespace}{spelling.suggest(namespace, known)}"


async def explain(seen: mirror.Mirror, kind: str, name: str, namespace: str) -> str:
    """Why there is no workload called so."""
    found = [resource for key in sorted(seen.find_kinds(kind)) if (resource := seen.served.find(*key)) is not None]
    if not found:
        return _explain_kind(seen, kind)
    if not any(resource.namespaced for resource in found):
        return f"a {found[0].kind} is no workload: it is in no namespace"
    looked = {each: await _why_not(seen, each, namespace, name) for each in found if each.namespaced}
    for resource, problem in looked.items():
        if problem is None:
            return _explain_seen(seen, resource, name, namespace)
    for resource, problem in looked.items():
        if not isinstance(problem, errors.NotFound):
            return f"whether there is a {resource.kind} {name} in namespace {namespace} cannot be seen: {problem}"
    called = " or ".join(dict.fromkeys(each.kind for each in looked))
    elsewhere = await _find_elsewhere(seen, list(looked), name)
    there = {each.ref.name: each.ref.short for each in seen.workloads({}) if each.ref.namespace == namespace}
    return f"there is no {called} {name} in namespace {namespace}{elsewhere or spelling.suggest(name, there)}"


def _explain_kind(seen: mirror.Mirror, kind: str) -> str:
    down = "".join(f"; the server of {group} does not answer" for group in seen.served.unavailable)
    for row in kinds.KINDS:
        if kinds.is_called(row.key, kind):
            return f"this cluster has no kind {row.kind} ({row.group}), so there is nothing of it{down}"
    served = [each for each in seen.served.resources if each.namespaced]
    known = {word: each.kind.lower() for each in served for word in each.words}
    return f"this cluster has no kind {kind}{down or spelling.suggest(kind, known)}"


async def _why_not(
    seen: mirror.Mirror, resource: kube.Resource, namespace: str, name: str
) -> errors.ClientError | None:
    """None: it is there."""
    try:
        await seen.api.get(resource, namespace, name, kind=kube.BareObject)
    except errors.ClientError as problem:
        return problem
    return None


def _explain_seen(seen: mirror.Mirror, resource: kube.Resource, name: str, namespace: str) -> str:
    """It is there, and no workload of ours."""
    link = (resource.group, resource.kind, name)
    above = next((each for each in seen.workloads({}) if _has_link(each, link, namespace)), None)
    if above is not None:
        return f"{resource.kind}/{name} belongs to {above.ref.short}; name that instead"
    if (resource.group, resource.kind) == owners.POD:
        return f"Pod/{name} in namespace {namespace} asks for no GPU"
    unseen = "".join(f"; not seen: {missing.what}: {missing.because}" for missing in seen.missing)
    return f"{resource.kind}/{name} in namespace {namespace} holds no GPU and is not paused by fallow{unseen}"


def _has_link(workload: cluster.Workload, link: tuple[str, str, str], namespace: str) -> bool:
    chain = ((each.group, each.kind, each.name) for each in workload.chain)
    return workload.ref.namespace == namespace and link in chain


async def _find_elsewhere(seen: mirror.Mirror, resources: Sequence[kube.Resource], name: str) -> str:
    """Others of that name; nothing where that may not be asked."""
    found = dict[str, None]()
    for resource in resources:
        with contextlib.suppress(errors.ClientError):
            chosen = seen.api.list_pages(
                resource, item=kube.BareObject, metadata_only=True, field_selector=f"metadata.name={name}"
            )
            found |= {each.metadata.namespace: None async for page in chosen for each in page.items}
    places = sorted(found)[: spelling.MOST]
    return f"; did you mean the one in namespace {' or '.join(places)}?" if places else ""

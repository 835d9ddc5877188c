"""For `fallow support-bundle`: what the cluster tells about fallow, for somebody who helps from afar.

In: what a kubeconfig says, and the namespace of the daemon or none. Out: Parts: named texts, without secrets, or why
one is not there; each of a bounded size.
Invariant: no Secret is ever read. Of what runs in the daemon's namespace the settings are shown by the table of flags,
everything else of it by what is listed here; a hidden value is taken out of all other parts too.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from fallow import names, settings
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import redaction
from fallow.model.secret import Secret
from fallow.settings import config_file, shown
from fallow.wiring import reach

MOST_BYTES: Final = 2_000_000  # of one part
_LOG_LINES: Final = "2000"
_MOST_PODS: Final = 12
_MOST_OBJECTS: Final = 500
_COMPONENTS: Final = ("gpu-pruner", names.WEBHOOK, "fallow-extender", "fallow-scheduler", "fallow-spot-watch",
                      names.NODE_EXPORTER)
_SELECTOR: Final = f"{names.NAME_LABEL} in ({','.join(_COMPONENTS)})"
_SETTINGS: Final = "gpu-pruner-settings"  # of the chart's value `settings`
_KINDS: Final = (
    kube.IDLE_POLICIES, kube.COST_BUDGETS, kube.COST_ATTRIBUTIONS, kube.SHARING_POLICIES, kube.NODE_CONFIGS,
    kube.SCALING_POLICIES,
)
_DAEMON_SETS: Final = kube.Resource("apps", "v1", "daemonsets", "DaemonSet", True)


class BundlePart(msgspec.Struct, frozen=True):
    """`text` None: it is not there, and `why` says so in a sentence."""

    name: str
    text: str | None = None
    why: str = ""


class Gathered(msgspec.Struct, frozen=True):
    """`redactor`: knows what was hidden, for all parts that others add."""

    parts: tuple[BundlePart, ...]
    redactor: redaction.Redactor


async def gather(kubeconfig: str | None, context: str | None, namespace: str | None) -> Gathered:
    """Raises what the client does where the API server itself does not answer."""
    secrets = find_own_secrets(kubeconfig, context)
    async with reach.open_api(kubeconfig, context) as (api, own):
        homes = [namespace] if namespace else await _find_homes(api, own)
        collector = _Collector(api, secrets)
        parts = [part async for part in collector.collect(homes)]
    redactor = redaction.know(collector.secrets)
    return Gathered(tuple(clean(each, redactor) for each in parts), redactor)


def clean(part: BundlePart, redactor: redaction.Redactor) -> BundlePart:
    """Without secrets, and of a bounded size: of a page that is too long the end, which is the newest; a tree stays
    whole, or out."""
    if part.text is None:
        return BundlePart(part.name, None, redactor.text(part.why))
    if part.name.endswith(".json"):
        said = part.text.encode(errors="replace")
        if len(said) > MOST_BYTES:
            return BundlePart(part.name, None, "it is too long")
        return BundlePart(part.name, encode(redactor.tree(msgspec.json.decode(said))))
    text = redactor.text(part.text)  # as a whole: of a secret that is cut in two, the second half is not known again
    said = text.encode(errors="replace")
    if len(said) <= MOST_BYTES:
        return BundlePart(part.name, text)
    return BundlePart(part.name, said[-MOST_BYTES:].decode(errors="ignore"), "only its end: it is too long")


def encode(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


# ---- what must not be shown ------------------------------------------------------------------------------------------


def find_own_secrets(kubeconfig: str | None, context: str | None) -> list[str]:
    """By which this machine is let in anywhere, as far as this process can know."""
    environment = settings.environment()
    named = [text for name, text in environment.items() if redaction.is_secret_name(name)]
    with contextlib.suppress(errors.ClientError):
        access = config.load_access(kubeconfig=kubeconfig, context=context, environment=environment)
        named += _reveal(access)
    return named + shown.find_secrets(
        (name, text) for name, text in environment.items() if name.endswith(("_URL", "_DSN"))
    )


def _reveal(value: Any) -> Iterator[str]:
    match value:
        case Secret():
            yield from _reveal(value.reveal())
        case bytes():
            yield value.decode(errors="ignore")
        case str():
            yield value
        case Mapping():
            for name, text in value.items():
                if redaction.is_secret_name(str(name)):
                    yield from _reveal(text)
        case msgspec.Struct():
            for name in value.__struct_fields__:
                member = getattr(value, name)
                if isinstance(member, Secret | msgspec.Struct):
                    yield from _reveal(member)


# ---- what the cluster tells ------------------------------------------------------------------------------------------


async def _find_homes(api: kube.Api, own: str | None) -> list[str]:
    """Where a Lease of a daemon stands; else where fallow usually is."""
    found = await reach.find_home(api, own, acting=False)
    return list(found.leases) or list(names.SYSTEM_NAMESPACES)


class _Collector:
    """`secrets` grows while hidden values are met."""

    def __init__(self, api: kube.Api, secrets: Iterable[str]) -> None:
        self._api, self.secrets = api, list(secrets)

    async def collect(self, homes: Sequence[str]) -> AsyncIterator[BundlePart]:
        for resource in _KINDS:
            yield await self._list(f"resources/{resource.plural}.json", resource, None, None, lambda each: each)
        for home in homes:
            yield await self._get(f"{home}/lease.json", kube.LEASES, home, names.LEASE)
            for name in ("gpu-pruner", "gpu-pruner-acting", "gpu-pruner-enforcement"):
                yield await self._get(f"{home}/configmap-{name}.json", kube.CONFIG_MAPS, home, name, self._tell_map)
            yield await self._get(
                f"{home}/configmap-{_SETTINGS}.json", kube.CONFIG_MAPS, home, _SETTINGS, self._tell_files
            )
        for place in dict.fromkeys([*homes, names.NODE_EXPORTER]):  # which has a namespace of its own, by its name
            for resource in (kube.DEPLOYMENTS, _DAEMON_SETS):
                yield await self._list(f"{place}/{resource.plural}.json", resource, place, _SELECTOR, self._tell_set)
            async for part in self._tell_pods(place):
                yield part

    async def _list(
        self, name: str, resource: kube.Resource, namespace: str | None, selector: str | None,
        tell: Callable[[dict[str, Any]], Any],
    ) -> BundlePart:
        try:
            found = [each async for each in self._objects(resource, namespace, selector)]
        except errors.NotFound:
            return BundlePart(name, None, "the server has no such kind")
        except errors.ClientError as problem:
            return BundlePart(name, None, str(problem))
        return BundlePart(name, encode([tell(each) for each in found]))

    async def _objects(
        self, resource: kube.Resource, namespace: str | None, selector: str | None
    ) -> AsyncIterator[dict[str, Any]]:
        count = 0
        async for page in self._api.list_pages(resource, item=dict, namespace=namespace, label_selector=selector):
            for each in page.items:
                if (count := count + 1) > _MOST_OBJECTS:
                    return
                yield each

    async def _get(
        self, name: str, resource: kube.Resource, namespace: str, called: str,
        tell: Callable[[dict[str, Any]], Any] = lambda each: each,
    ) -> BundlePart:
        try:
            return BundlePart(name, encode(tell(await self._api.get(resource, namespace, called))))
        except errors.NotFound:
            return BundlePart(name, None, "there is none")
        except errors.ClientError as problem:
            return BundlePart(name, None, str(problem))

    # ---- what runs ----

    def _tell_set(self, found: dict[str, Any]) -> dict[str, Any]:
        spec = found.get("spec") or {}
        inside = (spec.get("template") or {}).get("spec") or {}
        return {
            "name": found["metadata"]["name"], "labels": found["metadata"].get("labels"),
            "replicas": spec.get("replicas"), "status": found.get("status"),
            "containers": [self._tell_container(each) for each in inside.get("containers") or ()],
        }

    def _tell_container(self, found: Mapping[str, Any]) -> dict[str, Any]:
        given, words = [(each["name"], each) for each in found.get("env") or ()], [*map(str, found.get("args") or ())]
        plain = {name: str(each["value"]) for name, each in given if each.get("value")}
        program, *typed = [*map(str, found.get("command") or ())] or [""]
        self.secrets += [*shown.find_secrets(plain.items()), *shown.find_secret_arguments(typed),
                         *shown.find_secret_arguments(words)]
        return {
            "name": found.get("name"), "image": found.get("image"), "resources": found.get("resources"),
            "command": [program, *shown.show_arguments(typed)], "arguments": shown.show_arguments(words),
            "variables": {
                name: shown.show_variable(name, plain[name]) if name in plain else each.get("valueFrom") or ""
                for name, each in given
            },
            "variablesFrom": found.get("envFrom"),
        }

    def _tell_map(self, found: dict[str, Any]) -> dict[str, str]:
        data = {str(name): str(text) for name, text in (found.get("data") or {}).items()}
        self.secrets += shown.find_secrets(data.items())
        return {name: shown.show_variable(name, text) for name, text in data.items()}

    def _tell_files(self, found: dict[str, Any]) -> dict[str, Any]:
        """Files of --config, as words of a command line; of one that the daemon cannot use, why."""
        return {str(name): self._tell_file(str(name), str(text)) for name, text in (found.get("data") or {}).items()}

    def _tell_file(self, name: str, text: str) -> Any:
        try:
            words = config_file.spell(text.encode(errors="replace"), Path(name))
        except settings.UsageError as problem:
            return str(problem)
        self.secrets += shown.find_secret_arguments(words)
        return shown.show_arguments(words)

    async def _tell_pods(self, home: str) -> AsyncIterator[BundlePart]:
        try:
            found = [each async for each in self._objects(kube.PODS, home, _SELECTOR)]
        except errors.ClientError as problem:
            yield BundlePart(f"{home}/pods.json", None, str(problem))
            return
        yield BundlePart(f"{home}/pods.json", encode([_tell_pod(each) for each in found]))
        for pod in found[:_MOST_PODS]:
            async for part in self._tell_logs(home, pod):
                yield part
        async for part in self._tell_metrics(home, found):
            yield part

    async def _tell_logs(self, home: str, pod: Mapping[str, Any]) -> AsyncIterator[BundlePart]:
        """Of each container: where there are several, the server does not choose."""
        name, states = pod["metadata"]["name"], (pod.get("status") or {}).get("containerStatuses") or ()
        restarted = {each.get("name") for each in states if each.get("restartCount")}
        for container in (each["name"] for each in pod["spec"].get("containers") or ()):
            asked = {"container": container, "tailLines": _LOG_LINES}
            yield await self._read(f"{home}/{name}.{container}.log", home, name, "log", asked)
            if container in restarted:
                before = {**asked, "previous": "true"}
                yield await self._read(f"{home}/{name}.{container}.before.log", home, name, "log", before)

    async def _tell_metrics(self, home: str, pods: Sequence[Mapping[str, Any]]) -> AsyncIterator[BundlePart]:
        for pod in pods[:_MOST_PODS]:
            ports = [
                port["containerPort"] for each in pod["spec"].get("containers") or ()
                for port in each.get("ports") or () if port.get("name") == "metrics"
            ]
            for port in ports[:1]:
                called = pod["metadata"]["name"]
                yield await self._read(f"{home}/{called}.metrics.txt", home, f"{called}:{port}", "proxy/metrics", {})

    async def _read(self, name: str, home: str, pod: str, what: str, params: Mapping[str, str]) -> BundlePart:
        path = f"{kube.PODS.path(home, pod)}/{what}"
        try:
            said = await self._api.relay(path, params, {})
        except errors.ClientError as problem:
            return BundlePart(name, None, str(problem))
        return BundlePart(name, said.decode(errors="replace"))


def _tell_pod(found: Mapping[str, Any]) -> dict[str, Any]:
    status = found.get("status") or {}
    return {
        "name": found["metadata"]["name"], "node": (found.get("spec") or {}).get("nodeName"),
        "phase": status.get("phase"), "started": status.get("startTime"), "conditions": status.get("conditions"),
        "containers": [
            {key: each.get(key) for key in ("name", "ready", "restartCount", "image", "imageID", "state", "lastState")}
            for each in status.get("containerStatuses") or ()
        ],
    }

"""Traces by their name: where they lie, what kind they are, and the world that each becomes.

In: a file, or a name and the folder of the traces; how many nodes and hours of it are wanted. Out: a PastWorld: a World
as often as one is needed, and in words what of it is from the trace, what is made up, and which rows were left out.
Kinds: GenTD26 (what GPUs did), Helios (how many GPUs were asked for), openb (nodes, and pods that ask for GPUs).
Invariant: the kind is known by the first line of a file, not by its name; the same file and numbers give the same past.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from fallow.model import units
from fallow.model.units import HOUR, MINUTE
from fallow.sim import cast
from fallow.sim.traces import openb, published
from fallow.sim.traces.openb import NoTrace
from fallow.sim.traces.published import TraceError, TraceReport
from fallow.sim.world.world import World

GENTD26, HELIOS, OPENB = "gentd26", "helios", "openb"
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    GENTD26: published.GENTD26_COLUMNS, HELIOS: published.HELIOS_COLUMNS, OPENB: openb.PODS_COLUMNS,
}
# Of several of one kind.
_USUAL: Final = {GENTD26: "gentd26_gpu_a", HELIOS: "helios_earth_a", OPENB: "openb_pod_list_default"}
_NODES: Final = "openb_node_list_gpu_node.csv"
_PATTERNS: Final = ("*.csv", "*.csv.gz", "openb/*.csv", "openb/*.csv.gz")


class PastWorld(msgspec.Struct, frozen=True):
    """`summary`: one sentence on what it is. `notes`: what of it is real and what is not, and what was left out."""

    make_world: Callable[[], World]
    summary: str
    notes: tuple[str, ...] = ()


def find(name: str, folder: Path | None) -> Path:
    """A file, else a kind or the stem of a file in the folder, if there is one. Raises NoTrace with what is there."""
    if Path(name).is_file():
        return Path(name)
    there = _look(folder)
    found = there.get(name) or (find_kind(name, folder) if name in KINDS else None)
    if found is not None:
        return found
    if folder is None or not folder.is_dir():
        lacks = f", and there is no folder {folder}" if folder else ""
        raise NoTrace(f"no trace {name}: it is no file{lacks}; {openb.SET_FOLDER}")
    stems = [stem for stem, path in there.items() if _kind_of(path)]
    holds = ", ".join([*(kind for kind in KINDS if find_kind(kind, folder)), *stems]) or "no trace"
    raise NoTrace(f"no trace {name}: it is no file, and {folder} (FALLOW_TRACES) holds {holds}")


def find_kind(kind: str, folder: Path | None) -> Path | None:
    """The usual file of that kind, else the first."""
    found = {stem: path for stem, path in _look(folder).items() if _kind_of(path) == kind}
    return found.get(_USUAL[kind]) or next(iter(found.values()), None)


def _look(folder: Path | None) -> dict[str, Path]:
    """Files by their stem, in order."""
    found = [path for pattern in _PATTERNS for path in folder.glob(pattern)] if folder else []
    return {path.name.partition(".")[0]: path for path in sorted(found) if path.is_file()}


def _kind_of(path: Path) -> str | None:
    """None: it is of no kind that is known, or cannot be read."""
    try:
        return _recognise(published.read_header(path))
    except TraceError:
        return None


def _recognise(header: list[str]) -> str | None:
    return next((kind for kind, columns in KINDS.items() if set(columns) <= set(header)), None)


def open_past(path: Path, folder: Path | None, *, seed: int, hours: float, nodes: int | None) -> PastWorld:
    """The past that this file tells of. `nodes`: so much of its cluster (None = all), `hours`: so much of its time;
    what GPUs did in GenTD26 is never cut. Raises TraceError where it tells of none."""
    match _recognise(published.read_header(path)):
        case "gentd26":
            return of_trace(published.read_gentd26(path), seed=seed, source=path.name)
        case "helios":
            return _of_helios(path, seed=seed, hours=hours, nodes=nodes)
        case "openb":
            return _of_openb(path, folder, seed=seed, hours=hours, nodes=nodes)
    firsts = "; or ".join(f"{', '.join(columns)} ({kind})" for kind, columns in KINDS.items())
    raise TraceError(f"the trace {path.name} is of no kind that is known: its first line must name {firsts}")


def of_trace(trace: published.Trace, *, seed: int, source: str) -> PastWorld:
    """What GPUs did, as a trace or a Prometheus tells it."""
    length = units.humane(trace.span.columns * trace.span.step)
    return PastWorld(
        functools.partial(published.to_world, trace, seed=seed),
        f"{len(trace.parts)} pods over {length} from {source}: {trace.report}",
        (
            "real: who was there from when to when, and what each GPU did; made up: that everybody has room, and how "
            "people react to a pause", *_examples(trace.report),
        ),
    )


def _of_helios(path: Path, *, seed: int, hours: float, nodes: int | None) -> PastWorld:
    demands, report = published.read_helios(path)
    chosen = published.choose_demands(demands, nodes, seed=seed)
    length = min(hours, max((len(one.wanted) for one in chosen), default=0) * MINUTE / HOUR)
    gpus, first = sum(one.total for one in chosen), units.humane(length * HOUR)
    return PastWorld(
        functools.partial(cast.make_helios_world, chosen, seed=seed, hours=length),
        f"{len(chosen)} of {len(demands)} virtual clusters with {gpus} GPUs in all, the first {first} of {path.name}: "
        f"{report}",
        (
            "real: how many GPUs each virtual cluster had and was asked for, minute by minute; made up: the jobs that "
            "ask for them, what they do with them, nodes of eight A100, and how people react to a pause",
            *_examples(report),
        ),
    )


def _of_openb(path: Path, folder: Path | None, *, seed: int, hours: float, nodes: int | None) -> PastWorld:
    machines, of_nodes = openb.read_nodes(_find_nodes(path, folder))
    pods, of_pods = openb.read_pods(path)
    asking = [each for each in pods.values() if each.pod.gpus]
    cluster, guests = cast.cut_openb(list(machines.values()), asking, nodes, seed=seed)
    if not cluster or not guests:
        raise TraceError(f"the trace {path.name} holds no node with GPUs and a pod that asks for one of them")
    return PastWorld(
        functools.partial(cast.make_openb_world, cluster, guests, seed=seed, hours=hours),
        f"{len(cluster)} of {len(machines)} nodes and {len(guests)} of {len(pods)} pods ({len(pods) - len(asking)} ask "
        f"for no GPU) of {path.name}: nodes {of_nodes}; pods {of_pods}",
        (
            "real: the nodes with their GPUs, and what each pod asked for; made up: what they do with it (openb has no "
            f"utilisation), that all are there at once for {units.humane(hours * HOUR)}, time-sliced nodes for shares "
            "of a GPU, and how people react to a pause",
            *_examples(of_nodes, "nodes, "), *_examples(of_pods, "pods, "),
        ),
    )


def _find_nodes(path: Path, folder: Path | None) -> Path:
    """The list of nodes beside the list of pods, else that of the folder."""
    homes = [path.parent, *([folder / "openb"] if folder else [])]
    if found := next((home / _NODES for home in homes if (home / _NODES).is_file()), None):
        return found
    where = f"neither beside it nor in {homes[1]}" if folder else "not beside it"
    raise NoTrace(f"{path.name} is a list of pods, and its list of nodes, {_NODES}, is {where}")


def _examples(report: TraceReport, of: str = "") -> Iterator[str]:
    if report.examples:
        yield f"left out, for example: {of}{f'; {of}'.join(report.examples)}"


def open_real_lives(folder: Path | None) -> tuple[published.Trace | None, str]:
    """GenTD26 of the folder, of which lives are cut, and a sentence on it; None where none can be used."""
    if folder is None:
        return None, "FALLOW_TRACES is not set"
    path = find_kind(GENTD26, folder)
    if path is None:
        return None, f"there is no GenTD26 trace in {folder} (FALLOW_TRACES)"
    try:
        trace = published.read_gentd26(path)
    except TraceError as problem:
        return None, str(problem)
    if pods := len(published.whole_days(trace)):
        return trace, f"{pods} pods of {path.name}, {trace.report}"
    return None, f"{path.name} tells of no GPU for its whole length"

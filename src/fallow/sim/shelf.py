"""Traces by their name: where they lie, what kind they are, and the world that each becomes.

In: a file, or a name and the folder of the traces, if there is one; how many nodes and hours of it are wanted. Out: a
PastWorld: a World as often as one is needed, and in words what of it is from the trace, what is made up, and which rows
were left out.
Kinds: GenTD26 (what GPUs did), Helios (how many GPUs were asked for), openb (nodes, and pods that ask for GPUs).
Invariant: the kind is known by the first line of a file (openb's pods by their name too); the same file and numbers
give the same past.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from fallow.model import units
from fallow.model.units import HOUR, MINUTE
from fallow.sim import cast
from fallow.sim.traces import openb, published, samples
from fallow.sim.traces.openb import NoTrace
from fallow.sim.traces.published import TraceError, TraceReport
from fallow.sim.world.world import World

GENTD26, HELIOS, OPENB = "gentd26", "helios", "openb"
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    GENTD26: published.GENTD26_COLUMNS, HELIOS: published.HELIOS_COLUMNS, OPENB: openb.PODS_COLUMNS,
}
# Of several of one kind.
_USUAL: Final = {GENTD26: "gentd26_gpu_a", HELIOS: "helios_earth_a", OPENB: f"{openb.PODS_PREFIX}default"}
_ABOUT: Final = {
    GENTD26: "what each GPU did", HELIOS: "how many GPUs were asked for, minute by minute",
    OPENB: "nodes, and pods that ask for GPUs",
}
_SHIPPED: Final = (
    (samples.SAMPLE, GENTD26, samples.DUTY, "what 30 GPUs did in a day, made up; comes with fallow"),
    (samples.SAMPLE_PODS, OPENB, samples.PODS, "48 nodes, and 300 pods that ask for GPUs, made up; comes with fallow"),
)
_MADE_UP: Final = "all of it is made up: it shows how the commands work, and proves nothing"
_PATTERNS: Final = ("*.csv", "*.csv.gz", "openb/*.csv", "openb/*.csv.gz")


class PastWorld(msgspec.Struct, frozen=True):
    """`summary`: one sentence on what it is. `notes`: what of it is real and what is not, and what was left out."""

    make_world: Callable[[], World]
    summary: str
    notes: tuple[str, ...] = ()


class ShelvedTrace(msgspec.Struct, frozen=True):
    """A trace that is there, under the one name that every command knows it by."""

    name: str
    kind: str
    path: Path
    about: str


def list_traces(folder: Path | None) -> dict[str, ShelvedTrace]:
    """By name: those that are shipped, then those of the folder, if there is one."""
    shipped = {name: ShelvedTrace(name, kind, samples.FOLDER / file, about) for name, kind, file, about in _SHIPPED}
    known = [(path, kind) for path in _look(folder) if (kind := _kind_of(path))]
    usual = {kind: _find_usual([path for path, other in known if other == kind], kind) for _, kind in known}
    found = (_shelve(path, kind, is_usual=usual[kind] == path) for path, kind in known)
    return shipped | {each.name: each for each in found}


def _find_usual(paths: Sequence[Path], kind: str) -> Path:
    """The one that the name of the kind stands for."""
    return next((path for path in paths if path.name.partition(".")[0] == _USUAL[kind]), paths[0])


def _shelve(path: Path, kind: str, *, is_usual: bool) -> ShelvedTrace:
    stem = path.name.partition(".")[0]
    name = kind if is_usual else stem.replace(openb.PODS_PREFIX, "openb-", 1)
    return ShelvedTrace(name, kind, path, f"{_ABOUT[kind]} ({path.name})")


def find(name: str, folder: Path | None) -> Path:
    """A file, else the trace of that name. Raises NoTrace with what is there."""
    if Path(name).is_file():
        return Path(name)
    there = list_traces(folder)
    if name in there:
        return there[name].path
    lacks = f"; there is no folder {folder} (FALLOW_TRACES)" if folder and not folder.is_dir() else ""
    more = "" if folder else "; set FALLOW_TRACES to a folder with more (docs/traces.md)"
    raise NoTrace(f"no trace {name}: it is no file, and the names are {', '.join(there)}{lacks}{more}")


def find_pods(name: str, folder: Path | None) -> openb.OpenbFiles:
    """The same for who needs what pods asked for. Raises TraceError where it tells of something else."""
    path = find(name, folder)
    if path.name.startswith(openb.PODS_PREFIX) or _recognise(published.read_header(path)) == OPENB:
        shown = path.name.partition(".")[0] if Path(name).is_file() else name
        return openb.OpenbFiles(shown, path, _find_nodes(path, folder))
    suiting = ", ".join(each.name for each in list_traces(folder).values() if each.kind == OPENB)
    columns = f"its first line must name {', '.join(openb.PODS_COLUMNS)}"
    raise TraceError(f"the trace {name} tells of no pods that ask for GPUs ({columns}); those that do: {suiting}")


def find_kind(kind: str, folder: Path | None) -> Path | None:
    """The usual file of that kind, else the first."""
    found = list_traces(folder).get(kind)
    return found.path if found else None


def _look(folder: Path | None) -> list[Path]:
    """Files in order, of each stem one."""
    found = [path for pattern in _PATTERNS for path in folder.glob(pattern)] if folder else []
    return list({path.name.partition(".")[0]: path for path in sorted(found) if path.is_file()}.values())


def _kind_of(path: Path) -> str | None:
    """None: it is of no kind that is known, or cannot be read. A list of pods keeps its name when a column is gone:
    another must not be taken for it."""
    if path.name.startswith(openb.PODS_PREFIX):
        return OPENB
    try:
        return _recognise(published.read_header(path))
    except TraceError:
        return None


def _recognise(header: list[str]) -> str | None:
    return next((kind for kind, columns in KINDS.items() if set(columns) <= set(header)), None)


def open_past(path: Path, folder: Path | None, *, seed: int, hours: float, nodes: int | None) -> PastWorld:
    """The past that this file tells of. `nodes`: so much of its cluster (None = all), `hours`: so much of its time;
    what GPUs did in GenTD26 is never cut. Raises TraceError where it tells of none."""
    if path.parent == samples.FOLDER:
        past = _open_past(path, folder, seed=seed, hours=hours, nodes=nodes)
        return msgspec.structs.replace(past, notes=(_MADE_UP, *past.notes[1:]))
    return _open_past(path, folder, seed=seed, hours=hours, nodes=nodes)


def _open_past(path: Path, folder: Path | None, *, seed: int, hours: float, nodes: int | None) -> PastWorld:
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
    if found := next((home / openb.NODES_FILE for home in homes if (home / openb.NODES_FILE).is_file()), None):
        return found
    where = f"neither beside it nor in {homes[1]}" if folder else "not beside it"
    raise NoTrace(f"{path.name} is a list of pods, and its list of nodes, {openb.NODES_FILE}, is {where}")


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

"""The commands that stand in our documents: found, read, and checked for words that do not exist.

In: the Markdown files of the project. Out: `Block`s of commands (fences ```sh) and `mentions` (commands in running
text), and `check`, which raises Wrong for a flag, verb, target, file or object that is not there.
A block that cannot be run says so in a comment right above it: <!-- not run: REASON -->. It is checked all the same.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from fallow import names, settings
from fallow.doors.cli import exporter, flags, main, pruner
from tests import ROOT, objects

LANGUAGES = ("sh", "yaml", "text", "promql")
INSTALLING = tuple(f"docs/operators/{page}.md" for page in ("install", "switch-on", "upgrade"))  # in this order
SEVERAL = "docs/operators/clusters.md"
ON_A_CLUSTER = (*INSTALLING, SEVERAL)  # tests/real/test_document_commands.py types what is no command of ours
OURS = ("fallow", "gpu-pruner", "gpu-idle-exporter", "gpu-autoscaler")
_FENCE = re.compile(r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S)
_MENTION = re.compile(r"`((?:fallow|gpu-pruner|gpu-idle-exporter|gpu-autoscaler|kubectl|make|podman) [^`\n]+)`")
_PLACEHOLDERS = {
    "KIND/NAME": "Deployment/llm", "NAMESPACE": "ml", "NAME": "llm", "N": "1", "TIME": "2027-01-01T00:00:00Z",
}
_PAST = ("CHANGELOG.md", "docs/spec", "docs/contributors/decisions")  # what was, or is asked for
_KUBECTL = {
    "annotate", "apply", "create", "delete", "fallow", "describe", "get", "kustomize", "label", "logs", "patch",
    "port-forward", "rollout", "scale",
}
_WITH_VALUE = ("-n", "-f", "-k", "-o", "-l", "--field-selector", "--patch-file")  # of kubectl
_SHORT = {"deployment": "Deployment", "lease": "Lease", "serviceaccount": "ServiceAccount", "svc": "Service"}


class Wrong(AssertionError):
    """A command in a document cannot be right."""


class Command(msgspec.Struct, frozen=True):
    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


class Block(msgspec.Struct, frozen=True):
    """The commands of one fence, and its lines as a shell reads them; `why` it is not run, if it is not."""

    page: str
    line: int
    commands: tuple[Command, ...]
    text: str
    why: str

    @property
    def is_foreign(self) -> bool:
        """Is there no command of ours in it?"""
        return not {command.words[0] for command in self.commands} & set(OURS)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}" + (f" ({self.why})" if self.why else "")


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"),
             ROOT / "charts" / "fallow" / "README.md"]
    return sorted(found)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [_read_block(name_of(page), text, found) for found in _FENCE.finditer(text) if found["language"] == "sh"]


def languages(page: Path) -> list[str]:
    return [found["language"] for found in _FENCE.finditer(page.read_text())]


def _read_block(page: str, text: str, found: re.Match[str]) -> Block:
    first = text.count("\n", 0, found.start("body")) + 1
    lines = found["body"].replace("\\\n", "  ").splitlines()
    commands = [
        Command(page, first + number, words) for number, line in enumerate(lines) for words in _split(line)
    ]
    return Block(page, first - 1, tuple(commands), found["body"], found["why"] or "")


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of one line: comments are dropped, pipes and semicolons part them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= {">"}:  # where to is nobody's flag
            next(lexer)
        elif set(word) <= set("|;&"):
            yield tuple(words)
            words = []
        else:
            words.append(word)
    if words:
        yield tuple(words)


def mentions(page: Path) -> list[Command]:
    """Commands in running text, with something in the place of KIND/NAME and its like."""
    name = name_of(page)
    if name.startswith(_PAST):
        return []
    text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
    return [
        Command(name, text.count("\n", 0, found.start()) + 1, _fill(shlex.split(found[1].replace("\\|", "|"))))
        for found in _MENTION.finditer(text)
    ]


def _fill(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(_PLACEHOLDERS.get(word, word) for word in words if word != "...")


# ---- what must be true of a command ---------------------------------------------------------------------------------


def check(command: Command, *, is_mention: bool = False) -> None:
    """Raises Wrong. In running text a command may be cut short: what is missing is no mistake there."""
    program, *words = command.words
    checks: dict[str, Callable[[Sequence[str]], None]] = {
        "make": _check_make, "kubectl": _check_kubectl, "podman": _check_files, "pip": _check_files,
        "promtool": _check_files, "helm": _check_files, "curl": _check_nothing, "sed": _check_nothing,
        "export": _check_export, "sha256sum": _check_nothing,
    }
    try:
        if program in OURS:
            parse(program, words)
        elif program in checks:
            checks[program](words)
        else:
            raise Wrong(f"nobody knows how to check {program}")
    except click.ClickException as problem:
        if not (is_mention and isinstance(problem, click.MissingParameter)):
            raise Wrong(f"{command}: {problem.format_message()}") from None
    except Wrong as problem:
        raise Wrong(f"{command}: {problem}") from None
    except click.exceptions.Exit:
        pass  # it answers and ends: --help


def parse(program: str, words: Sequence[str]) -> None:
    """As the program itself would, up to the moment it would begin."""
    found: click.Command = {
        "fallow": main.fallow, "gpu-pruner": pruner.gpu_pruner, "gpu-idle-exporter": exporter.gpu_idle_exporter,
        "gpu-autoscaler": main.gpu_autoscaler,
    }[program]
    rest, name = list(words), program
    while isinstance(found, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        inner = found.get_command(click.Context(found), name)
        if inner is None:
            raise Wrong(f"there is no {name} in {program}")
        found = inner
    if isinstance(found, click.Group) and not rest:
        return  # only named
    given = found.make_context(name, rest).params
    known = {flag.key for flag in settings.FLAGS}
    if isinstance(found, flags.FlagCommand) and set(given) >= {"duration", "run_mode"}:
        flags.read_settings({key: value for key, value in given.items() if key in known})


def _check_make(words: Sequence[str]) -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    if missing := [word for word in words if word not in made]:
        raise Wrong(f"there is no target {missing[0]}")


def _check_files(words: Sequence[str]) -> None:
    for word in words:
        if word.startswith(("deploy/", "examples/", "docs/", "charts/")) and not (ROOT / word).exists():
            raise Wrong(f"there is no {word}")


def _check_nothing(words: Sequence[str]) -> None:
    pass


def _check_export(words: Sequence[str]) -> None:
    known = {flag.variable for flag in settings.FLAGS} | {"KUBECONFIG", "FALLOW_TRACES"}
    if words and (name := words[0].partition("=")[0]) not in known:
        raise Wrong(f"we read no variable {name}")


def _check_kubectl(words: Sequence[str]) -> None:
    _check_files(words)
    for option, folder in itertools.pairwise(words):
        if option in ("-k", "kustomize") and not (ROOT / folder / "kustomization.yaml").exists():
            raise Wrong(f"{folder} is no Kustomize folder")
    plain = _without_values(words)
    if not plain or plain[0] not in _KUBECTL:
        raise Wrong(f"kubectl {plain[:1]}")
    written = {value for name, value in vars(names).items() if isinstance(value, str) and name.isupper()}
    for key in re.findall(r"(gpuautoscaler\.io/[\w-]+)=", " ".join(words)):
        if key not in written:
            raise Wrong(f"there is no annotation {key}")
    if "gpu-pruner-system" in words:
        _check_own_objects([word for word in plain[1:] if not word.startswith("-")])
    for reason in re.findall(r"reason=(\w+)", " ".join(words)):
        if reason not in {value for name, value in vars(names.Event).items() if name.isupper()}:
            raise Wrong(f"there is no Event {reason}")


def _without_values(words: Sequence[str]) -> list[str]:
    return [
        word for before, word in zip(["", *words], words, strict=False)
        if word not in _WITH_VALUE and before not in _WITH_VALUE
    ]


def _check_own_objects(words: Sequence[str]) -> None:
    """`deployment/gpu-pruner` or `deployment gpu-pruner`: such an object is made by our manifests, or by the daemon."""
    pairs = [tuple(word.split("/", 1)) for word in words if "/" in word]
    pairs += [pair for pair in itertools.pairwise(words) if pair[0] in _SHORT and "/" not in pair[1]]
    for kind, name in pairs:
        if kind in _SHORT and (_SHORT[kind], name) not in _made_by_us():
            raise Wrong(f"our manifests make no {kind} {name}")


@functools.cache
def _made_by_us() -> frozenset[tuple[str, str]]:
    things = objects.read_files((ROOT / "deploy").rglob("*.yaml"))
    named = {(each["kind"], each["metadata"]["name"]) for each in things if "name" in each.get("metadata", {})}
    return frozenset(named | {("Lease", names.LEASE)})

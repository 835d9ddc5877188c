"""`fallow man`: the manual pages, made from the commands themselves: what --help says, as `man` shows it.

In: the words of a command, or a folder. Out: a page on the terminal through `man` where that is there, else its source
(roff); or a page for every command, each a file in the folder.
Invariant: no page says what --help does not, so that none can be out of date.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from fallow import __version__
from fallow.doors.cli import flags, main, show

SECTION: Final = "1"
# Programs besides `fallow` itself: module and attribute.
_PROGRAMS: Final = {
    "gpu-pruner": ("pruner", "gpu_pruner"), "gpu-autoscaler": ("main", "gpu_autoscaler"),
    "gpu-idle-exporter": ("exporter", "gpu_idle_exporter"),
}
_ENDS: Final = (
    ("0", "It is so; of one look: complete, also with nothing idle."),
    ("1", "It is not so, was refused, or a call failed; of one look: no decision."),
    ("2", "Typed or configured wrongly; nothing was contacted."),
    ("3", "Of one look: an action failed. Else: a trace that was asked for is not there."),
    ("4", "Of one look: frozen. Else: there is nobody to ask."),
    ("130", "Ended by Ctrl-C."),
)


def _man(words: tuple[str, ...], into: str | None) -> None:
    if into is not None:
        if words:
            raise click.UsageError("--into writes every page: it goes without the name of a command")
        _write_all(Path(into))
        return
    page = make(_find(words))
    if not (sys.stdout.isatty() and _is_shown(page)):
        click.echo(page, nl=False)


def _is_shown(page: str) -> bool:
    program = shutil.which("man")
    return program is not None and subprocess.run([program, "-l", "-"], input=page.encode()).returncode == 0


def _write_all(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = {f"{context.command_path.replace(' ', '-')}.{SECTION}": make(context) for context in walk()}
        for name, page in made.items():
            (folder / name).write_text(page)
    except OSError as problem:
        raise click.UsageError(f"--into: {folder}: {problem.strerror}") from None
    show.sentence(f"{len(made)} pages are in {folder}", f"man {folder.absolute() / f'fallow.{SECTION}'}")


# ---- which commands there are ----------------------------------------------------------------------------------------


def walk() -> Iterator[click.Context]:
    """Every command of every program, each as it would be called."""
    programs = {"fallow": main.fallow, **{name: getattr(main.load(module), what)
                                          for name, (module, what) in _PROGRAMS.items()}}
    for name, command in programs.items():
        yield from _walk(_enter(command, name, None))


def _walk(context: click.Context) -> Iterator[click.Context]:
    yield context
    command = context.command
    if isinstance(command, click.Group) and context.command_path != "gpu-autoscaler":  # whose commands are fallow's
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, "it was listed"
            yield from _walk(_enter(below, name, context))


def _enter(command: click.Command, name: str, above: click.Context | None) -> click.Context:
    return click.Context(command, info_name=name, parent=above, resilient_parsing=True, max_content_width=10_000)


def _find(words: Sequence[str]) -> click.Context:
    if words and words[0] in _PROGRAMS:
        module, what = _PROGRAMS[words[0]]
        context, words = _enter(getattr(main.load(module), what), words[0], None), words[1:]
    else:
        context = _enter(main.fallow, "fallow", None)
    for word in words:
        command = context.command
        below = command.get_command(context, word) if isinstance(command, click.Group) else None
        if below is None:
            raise click.UsageError(f"there is no command {show.plain(f'{context.command_path} {word}')}")
        context = _enter(below, word, context)
    return context


# ---- a page ----------------------------------------------------------------------------------------------------------


def make(context: click.Context) -> str:
    """Its source, in roff."""
    command, path = context.command, context.command_path
    named = path.replace(" ", "-")
    lines = [
        f'.TH "{_quoted(named.upper())}" "{SECTION}" "" "{_quoted(f"fallow {__version__}")}" "fallow"',
        ".nh", ".ad l", ".SH NAME",
        f"{_escape(named)} \\- {_escape(_first_sentence(context))}", ".SH SYNOPSIS", f".B {_escape(path)}",
        _escape(" ".join(command.collect_usage_pieces(context))), ".SH DESCRIPTION", *_describe(command.help or ""),
    ]
    for title, rows in list_options(context):
        lines += [f".SH {_escape(title.upper())}", *(_row(*each) for each in rows)]
    if isinstance(command, click.Group):
        lines += [".SH COMMANDS", *(_row(*each) for each in _commands(command, context))]
    lines += [".SH EXIT STATUS", *(_row(*each) for each in _ENDS)]
    others = ["fallow(1)"] if context.parent else ["kubectl(1)"]
    if context.parent and context.parent.parent:
        others.append(f"{context.parent.command_path.replace(' ', '-')}(1)")
    return "\n".join([*lines, ".SH SEE ALSO", _escape(", ".join(others))]) + "\n"


def _first_sentence(context: click.Context) -> str:
    if context.parent is not None and isinstance(context.parent.command, main.LazyGroup):
        return main.VERBS[context.info_name or ""][2].rstrip(".")
    return context.command.get_short_help_str(limit=200).rstrip(".")


def _describe(text: str) -> Iterator[str]:
    """Paragraphs; one that begins with \\b keeps its lines."""
    for paragraph in text.strip().split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if first.strip() == "\b":
            yield from (".PP", ".nf", ".RS", *(_escape(line) for line in rest.splitlines()), ".RE", ".fi")
        else:
            yield from (".PP", _escape(" ".join(paragraph.split())))


def list_options(context: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """By the headings of --help, all of them."""
    command = context.command
    if isinstance(command, flags.FlagCommand):
        yield from command.group_options(context).items()
        return
    found = [each.get_help_record(context) for each in command.get_params(context) if isinstance(each, click.Option)]
    yield "Options", [each for each in found if each is not None]


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        below = group.get_command(context, name)
        assert below is not None, "it was listed"
        yield f"{context.command_path} {name}".replace(" ", "-") + "(1)", _first_sentence(_enter(below, name, context))


def _row(head: str, said: str) -> str:
    return f".TP\n.B {_escape(head)}\n{_escape(' '.join(said.split())) or '~'}"


def _escape(text: str) -> str:
    """As it is: no backslash, dash or dot of ours is a command of roff's."""
    made = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{made}" if made[:1] in (".", "'") else made


def _quoted(text: str) -> str:
    return _escape(text).replace('"', "''")


man = click.Command(
    "man", callback=_man, context_settings=flags.CONTEXT,
    params=[
        click.Argument(["words"], nargs=-1, metavar="[COMMAND]..."),
        click.Option(["--into"], default=None, metavar="DIR", help="Write the pages of all commands into this folder."),
    ],
    help="The manual page of a command, made from the command itself: shown by man where that is there, else as roff."
    "\n\n\b\n"
    "  fallow man cost report\n"
    "  fallow man --into ~/.local/share/man/man1",
)

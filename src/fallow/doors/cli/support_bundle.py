"""`fallow support-bundle`: one file for who helps from afar: what fallow is, sees and did here. Without secrets.

In: the flags of a look, where the daemon lives. Out: a tar.gz that only its owner may read, and what is in it, named
line by line. What could not be had is named too, with the reason: less is sent, never something else.
Invariant: every part passes the redactor that knows what this machine and the daemon are let in by; nothing is sent
anywhere; no file is written over.
"""

from __future__ import annotations

import errno
import io
import os
import platform
import tarfile
import textwrap
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import click

from fallow import __version__, logs, names, settings, verbs
from fallow.clients import errors
from fallow.doors.answers import checkup
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as rows
from fallow.doors.cli import doctor, flags, interrupts, past, show, where
from fallow.doors.cli import look as looks
from fallow.model import redaction, units
from fallow.model.units import DAY, Instant
from fallow.settings import shown
from fallow.wiring import bundling, checking, daemon

_MOST_BYTES: Final = 20_000_000  # of all, before it is packed
_PAST: Final = 7 * DAY
_MOST_PAST: Final = 500
_ABOUT: Final = """\
What fallow is, sees and did on a cluster, for somebody who helps from afar. Look through it before you send it.
Passwords, tokens, keys and addresses with anything behind their host are taken out (***); no Secret was read. Names of
namespaces, workloads, nodes and people who acted are in it.
"""


def _bundle(file: str | None, home: str | None, **given: Any) -> None:
    now = time.time()
    path = Path(file or f"fallow-support-{units.rfc3339(now).replace(':', '')}.tar.gz")
    if path.exists():
        raise click.UsageError(f"--file: {path} is there already")
    if not path.absolute().parent.is_dir():
        raise click.UsageError(f"--file: there is no folder {path.absolute().parent}")
    options = flags.read_settings(given, looks.UNUSED_VARIABLES)
    logs.set_up("default", "error")
    parts = fit(_collect(options, home, given))
    content = pack(parts, now)
    write(path, content)
    for line in list_parts(parts).splitlines():
        click.echo(show.plain(line))
    show.sentence(f"{path} is written ({len(content) / 1024:.0f} KB)",
                  "look through it, then send it to who helps you: nothing was sent")


def _collect(options: settings.Settings, home: str | None, given: dict[str, Any]) -> list[bundling.BundlePart]:
    """The cluster's part first: it knows what is to be hidden in all others."""
    there = given["kubeconfig"], given["context"]
    try:
        gathered = interrupts.run(bundling.gather(*there, home))
    except errors.ClientError as problem:
        redactor = redaction.know(bundling.find_own_secrets(*there))
        gathered = bundling.Gathered((bundling.BundlePart("resources", None, redactor.text(str(problem))),), redactor)
    own = [bundling.BundlePart("about.json", bundling.encode(_tell_about())), _tell_settings(given),
           *_look(options, given), _tell_past(given)]
    return [*(bundling.clean(each, gathered.redactor) for each in own), *gathered.parts]


def _tell_about() -> dict[str, Any]:
    needs = [each.partition(";")[0] for each in metadata.requires("fallow") or () if "extra ==" not in each]
    packages = {name: metadata.version(name) for each in needs if (name := _name_of(each))}
    return {
        "fallow": __version__, "python": platform.python_version(), "system": platform.platform(),
        "customResources": f"{names.GROUP}/{names.POLICY_VERSION}", "packages": packages,
    }


def _name_of(requirement: str) -> str:
    end = next((place for place, letter in enumerate(requirement) if letter in "<>=!~[ "), len(requirement))
    return requirement[:end]


def _tell_settings(given: dict[str, Any]) -> bundling.BundlePart:
    """Of this very command; those of the daemon stand beside its Deployment."""
    by_key = {flag.key: flag for flag in settings.FLAGS}
    typed = [
        f"{by_key[key].name}={each}" for key, value in given.items() if key in by_key and value
        for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, str)
    ]
    variables = {flag.variable for flag in settings.FLAGS if flag.variable}
    found = {name: text for name, text in settings.environment().items() if name in variables}
    said = {"flags": shown.show_arguments(typed),
            "variables": {name: shown.show_variable(name, text) for name, text in found.items()}}
    return bundling.BundlePart("settings.json", bundling.encode(said))


def _look(options: settings.Settings, given: dict[str, Any]) -> list[bundling.BundlePart]:
    async def look() -> tuple[checkup.Checkup, str | None, str]:
        try:
            facts = await checking.gather(given["kubeconfig"], given["context"])
        except errors.ClientError as problem:
            return checkup.check(str(problem), ""), None, str(problem)
        try:
            sight = await daemon.look(options)
        except errors.ClientError as problem:
            return checkup.check(facts, str(problem)), None, str(problem)
        page = statuses.status(sight.look, rows.view(sight.look.plan), sight.daemon)
        return checkup.check(facts, sight), show.encode(page, "json"), ""

    found, status, why = interrupts.run(look())
    return [bundling.BundlePart("doctor.txt", click.unstyle(doctor.draw(found)) + "\n"),
            bundling.BundlePart("doctor.json", show.encode(found, "json")),
            bundling.BundlePart("status.json", status, why)]


def _tell_past(given: dict[str, Any]) -> bundling.BundlePart:
    asked = {"target": None, "everywhere": True, "namespace": None, "output": "json", "limit": _MOST_PAST,
             **{key: given.get(key) for key in ("kubeconfig", "context", *where.DAEMON_KEYS)}}
    try:
        return bundling.BundlePart("history.json", past.draw(asked, _PAST).text)
    except click.ClickException as problem:
        return bundling.BundlePart("history.json", None, problem.message)


# ---- the file --------------------------------------------------------------------------------------------------------


def fit(parts: Iterable[bundling.BundlePart], most: int = _MOST_BYTES) -> list[bundling.BundlePart]:
    """Whatever would make it too large is left out, and named."""
    kept, left = list[bundling.BundlePart](), most
    for part in parts:
        size = len((part.text or "").encode(errors="replace"))
        kept.append(part if size <= left else bundling.BundlePart(part.name, None, "it would make the file too large"))
        left -= size if size <= left else 0
    return kept


def pack(parts: Sequence[bundling.BundlePart], now: Instant) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for part in (bundling.BundlePart("CONTENTS.txt", f"{_ABOUT}\n{list_parts(parts)}"), *parts):
            if part.text is not None:
                content = part.text.encode(errors="replace")
                entry = tarfile.TarInfo(f"fallow-support/{part.name}")
                entry.size, entry.mtime, entry.mode = len(content), int(now), 0o600
                archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def list_parts(parts: Sequence[bundling.BundlePart]) -> str:
    there = [f"  {each.name}{f' ({each.why})' if each.why else ''}" for each in parts if each.text is not None]
    absent = [f"  {each.name}: {each.why}" for each in parts if each.text is None]
    return "\n".join(["in it:", *there, *(["not in it:", *absent] if absent else [])]) + "\n"


def write(path: Path, content: bytes) -> None:
    """All of it or nothing: beside its place first, because a disk may be full; what is there meanwhile stays."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():  # a renaming would write over it
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        beside.rename(path)
    except OSError as problem:
        raise show.failure(f"{path} cannot be written, and nothing is left of it: {problem.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)


_UNUSED: Final = frozenset({"namespace", "model_name"})

support_bundle = looks.LookCommand(
    "support-bundle", callback=_bundle, context_settings=flags.CONTEXT,
    params=[
        click.Option(["-f", "--file"], default=None, metavar="FILE",
                     help="Where to; default: fallow-support-TIME.tar.gz here."),
        click.Option(["-n", "--namespace", "home"], default=None,
                     help="Namespace of the daemon; default: wherever its Lease is.",
                     callback=show.checked(lambda text: verbs.check_namespace(text))),
        *(each for each in looks.look_options() if each.name not in _UNUSED),
    ],
    help=textwrap.dedent("""\
        One file for who helps you from afar: versions, settings, `fallow doctor`, `fallow status`, what happened in a
        week, our custom resources, logs and metrics of the daemon, as far as you may read them. Secrets are taken out,
        and nothing is sent: look through it, and send it yourself.

        \b
          fallow support-bundle
          fallow support-bundle -f /tmp/for-support.tar.gz
    """),
)

"""Writes the pictures of the demo for the README and the documents, as SVG.

`python -m docs.pictures` draws docs/pictures/moment.json at three sizes; with `--play` it first plays that day anew and
takes the moment from it (the same seed gives the same day). A test draws them again and compares: after a change of the
layout, run it.
Invariant: a picture names no font and no host of anybody, and looks the same in a light and in a dark page.
"""

import asyncio
import io
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from fallow.doors.cli import demo_director
from fallow.doors.cli import demo_view as view
from fallow.model.units import HOUR, parse_instant
from fallow.sim import cast, stage

FOLDER = Path(__file__).parent / "pictures"
MOMENT = FOLDER / "moment.json"
SIZES = {"demo.svg": (120, 35), "demo-80x24.svg": (80, 24), "demo-160x45.svg": (160, 45)}
BEGAN, HOURS, LENGTH = parse_instant("2026-11-16T00:00:00Z"), 14.5, 24.0
COMMANDS = (
    "export KUBECONFIG=/tmp/fallow-demo/kubeconfig", "export PROMETHEUS_URL=http://127.0.0.1:6441",
    "fallow status; fallow idle; kubectl get idlepolicies",
)
_THEME = TerminalTheme(
    (24, 27, 31), (214, 218, 224),
    [
        (24, 27, 31), (215, 0, 0), (0, 135, 0), (215, 95, 0), (0, 135, 255), (175, 95, 175), (0, 135, 175),
        (214, 218, 224),
    ],
)
# Widths are given by textLength, so that any font of fixed width does.
_FORMAT = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; \
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
<rect fill="#181b1f" width="{width}" height="{height}" rx="8"/>
<g transform="translate(9, 25)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def draw(moment: view.Moment, width: int, height: int) -> str:
    console = Console(
        record=True, width=width, height=height, force_terminal=True, color_system="truecolor", legacy_windows=False,
        file=io.StringIO(),
    )
    console.print(view.Picture(moment), end="")
    drawn = console.export_svg(theme=_THEME, code_format=_FORMAT, unique_id="fallow-demo")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def load() -> view.Moment:
    return msgspec.json.decode(MOMENT.read_bytes(), type=view.Moment)


def write(moment: view.Moment) -> None:
    for name, size in SIZES.items():
        (FOLDER / name).write_text(draw(moment, *size))


async def play(hours: float = HOURS) -> view.Moment:
    """The day of seed 7 until its afternoon."""
    world = cast.make_world(seed=7, nodes=16, hours=LENGTH).moved(BEGAN)
    with tempfile.TemporaryDirectory() as folder:
        async with stage.open_stage(world, Path(folder)) as on:
            director = demo_director.Director(
                on, speed=0.0, length=LENGTH * HOUR, stop=asyncio.Event(), commands=COMMANDS
            )
            while world.now < BEGAN + hours * HOUR:
                await director.step()
            return msgspec.structs.replace(director.look(), speed=0.0)


if __name__ == "__main__":
    if "--play" in sys.argv[1:]:
        MOMENT.write_bytes(msgspec.json.encode(asyncio.run(play())) + b"\n")
    write(load())

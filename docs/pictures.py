"""Writes the pictures of the demo for the README and the documents, as SVG.

`python -m docs.pictures` draws docs/pictures/moment.json at three sizes, as a dark and as a light terminal shows it;
with `--play` it first plays that day anew and takes the moment from it (the same seed gives the same day). A test draws
them again and compares: after a change of the layout, run it.
Invariant: a picture names no font and no host of anybody, and looks the same in a light and in a dark page.
"""

import asyncio
import io
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.terminal_theme import TerminalTheme

from fallow.doors.cli import demo_dashboard, demo_director
from fallow.doors.cli import demo_view as view
from fallow.model.units import HOUR, parse_instant
from fallow.sim import cast, paying, stage

FOLDER = Path(__file__).parent / "pictures"
MOMENT = FOLDER / "moment.json"
SIZES = {"demo": (120, 35), "demo-80x24": (80, 24), "demo-160x45": (160, 45)}
BEGAN, HOURS, LENGTH = parse_instant("2026-11-16T00:00:00Z"), 13.7, 24.0
COMMANDS = (
    "export KUBECONFIG=/tmp/fallow-demo/kubeconfig", "export PROMETHEUS_URL=http://127.0.0.1:6441",
    "fallow status; fallow idle; kubectl get idlepolicies", "fallow cost report --last 24h; fallow cost budget",
)
_COLOURS = [
    (24, 27, 31), (215, 0, 0), (0, 135, 0), (215, 95, 0), (0, 135, 255), (175, 95, 175), (0, 135, 175), (214, 218, 224),
]
TERMINALS = {  # what is behind the name of a picture; all but these two colours is the same
    "": TerminalTheme((24, 27, 31), (214, 218, 224), _COLOURS),
    "-light": TerminalTheme((255, 255, 255), (36, 41, 47), _COLOURS),
}
FILES = {
    f"{name}{suffix}.svg": (*size, theme) for name, size in SIZES.items() for suffix, theme in TERMINALS.items()
}
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
<rect fill="BACKGROUND" stroke="#808080" width="{width}" height="{height}" rx="8"/>
<g transform="translate(9, 25)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class _Joined:
    """A picture in as few pieces as it has changes of style."""

    def __init__(self, picture: view.Picture) -> None:
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from Segment.simplify(console.render(self._picture, options))


def draw(moment: view.Moment, width: int, height: int, terminal: TerminalTheme) -> str:
    console = Console(
        record=True, width=width, height=height, force_terminal=True, color_system="truecolor", legacy_windows=False,
        file=io.StringIO(),
    )
    console.print(_Joined(view.Picture(moment)), end="")
    page = _FORMAT.replace("BACKGROUND", terminal.background_color.hex)
    drawn = console.export_svg(theme=terminal, code_format=page, unique_id="fallow-demo")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def load() -> view.Moment:
    return msgspec.json.decode(MOMENT.read_bytes(), type=view.Moment)


def write(moment: view.Moment) -> None:
    for name, how in FILES.items():
        (FOLDER / name).write_text(draw(moment, *how))


async def play(hours: float = HOURS) -> view.Moment:
    """The day of seed 7 until its afternoon."""
    world = cast.make_world(seed=7, nodes=16, hours=LENGTH).moved(BEGAN)
    with tempfile.TemporaryDirectory() as folder:
        prices = paying.make_prices("default", BEGAN)
        async with stage.open_stage(world, Path(folder), flags=demo_dashboard.BOOKS, others=[prices]) as on:
            director = demo_director.Director(
                on, speed=0.0, length=LENGTH * HOUR, stop=asyncio.Event(), commands=COMMANDS
            )
            while world.now < BEGAN + hours * HOUR:
                await director.step()
            await director.close_books()
            return msgspec.structs.replace(director.look(), speed=0.0)


if __name__ == "__main__":
    if "--play" in sys.argv[1:]:
        MOMENT.write_bytes(msgspec.json.encode(asyncio.run(play())) + b"\n")
    write(load())

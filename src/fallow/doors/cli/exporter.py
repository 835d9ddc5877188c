"""`gpu-idle-exporter` and `fallow exporter`: the node exporter, configured by environment variables.

Exit codes: 0 stopped or printed, 1 the driver was asked for and did not work, 2 a variable or the web configuration is
wrong.
"""

import sys
import time
from typing import TYPE_CHECKING

import click

from fallow import __version__, logs, settings
from fallow.doors.cli import main
from fallow.settings import exporter as environment

if TYPE_CHECKING:  # what runs is imported when it runs: --help and usage errors answer at once
    from collections.abc import Mapping
    from typing import TypeAlias

    from fallow.model import processes

    Asked: TypeAlias = tuple[processes.Driver, processes.Table, processes.Owners]

EXIT_USAGE = 2

HELP = (
    "Shows which processes hold GPU memory without computing, and whose they are, as Prometheus metrics.\n\n"
    "Runs on a GPU node and answers /metrics, /healthz and /readyz on HTTP_PORT. Configured by environment variables."
)


class VariableCommand(main.Door):
    """A command whose --help shows the environment variables."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Environment"):
            formatter.write_dl([(variable.name, _describe(variable)) for variable in environment.VARIABLES])


def _describe(variable: environment.EnvVariable) -> str:
    return f"{variable.help} [default: {variable.default}]" if variable.default else variable.help


def _command(name: str, program: str, *more: click.Parameter) -> click.Command:
    once = click.Option(["--once"], is_flag=True, help="Poll as often as IDLE_POLLS says, print the metrics, end.")
    command = VariableCommand(
        name, callback=lambda **asked: sys.exit(_start(**asked)), context_settings=main.CONTEXT, help=HELP
    )
    message = "%(prog)s %(version)s"
    click.version_option(__version__, "-V", "--version", prog_name=program, message=message)(command)
    command.params += [once, *more]
    return command


gpu_idle_exporter = _command("gpu-idle-exporter", "gpu-idle-exporter")
exporter = _command("exporter", "fallow exporter", click.Option(
    ["--fake"], type=click.IntRange(1, 64), metavar="N", help="Pretend to have N GPUs, with processes that come and go."
))


def _start(once: bool, fake: int | None = None) -> int:
    environ = settings.environment()
    try:
        options, warnings = environment.read(environ)
    except settings.UsageError as problem:
        raise click.UsageError(str(problem)) from None
    import asyncio
    import logging

    from fallow.doors.exporter import run

    logs.set_up(options.log_format, options.log_level)
    log = logging.getLogger("fallow.exporter")
    for warning in warnings:
        log.warning("%s", warning)

    async def live() -> int:
        running = run.NodeExporter(options, *(_pretend(fake) if fake else _find(options, environ)))
        return await (run.run_once(options, running) if once else run.run(options, running))

    try:
        return asyncio.run(live())
    except settings.UsageError as problem:
        log.error("%s", problem)
        return EXIT_USAGE


def _find(options: environment.Options, environ: "Mapping[str, str]") -> "Asked":
    from fallow.clients import proc
    from fallow.clients.nvml import driver
    from fallow.observe.node import attribution

    owners = attribution.Attribution(options, environ)
    return driver.Nvml(options.nvml_library), proc.ProcessTable(options.host_proc), owners


def _pretend(gpus: int) -> "Asked":
    from fallow.sim import driver

    pretended = driver.PretendDriver(gpus, clock=time.time)
    return pretended, driver.PretendTable(pretended), driver.PretendOwners(pretended)

"""`fallow query`: one PromQL expression, asked of the Prometheus that fallow asks, with the same login.

In: an expression, where Prometheus is. Out: a table, JSON, YAML or a CSV file. It is only asked.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fallow import logs, settings
from fallow.clients import errors
from fallow.clients.kubernetes import config
from fallow.doors.answers import status as statuses
from fallow.doors.cli import flags, interrupts, show, where
from fallow.model import units
from fallow.model.units import Instant
from fallow.wiring import daemon

_SOURCE = ("--prometheus-", "--aws-")


def _query(promql: str, at: str | None, csv_file: str | None, output: str, **given: Any) -> None:
    options = flags.read_settings({**given, "source": "prometheus"})
    assert options.prometheus is not None, "this source has one, or its reader refuses"
    instant = _read_time(at)
    found = _ask(options, options.prometheus, promql, instant)
    labels = sorted({name for metric, _ in found for name in metric})
    rows = [[*(metric.get(name, "") for name in labels), value] for metric, value in found]
    if csv_file is not None:
        _write(csv_file, [*labels, "value"], rows)
        show.sentence(f"{len(rows):,} series of {units.rfc3339(instant)} are in {csv_file}")
        return
    if show.data([{"metric": metric, "value": value} for metric, value in found], output):
        return
    if not rows:
        show.sentence(f"no series at {units.rfc3339(instant)}")
        return
    show.table([*(name.upper() for name in labels), "VALUE"], rows)


def _read_time(text: str | None) -> Instant:
    try:
        return time.time() if text is None else units.parse_instant(text)
    except ValueError as problem:
        raise click.UsageError(f"--at: {problem}") from None


def _ask(
    options: settings.Settings, where_: settings.PrometheusSettings, promql: str, at: Instant
) -> list[tuple[dict[str, str], str]]:
    async def ask() -> list[tuple[dict[str, str], str]]:
        async with daemon.make_prometheus(options, where_, _find_access(options), tell=show.tell) as prometheus:
            answer = await prometheus.query(promql, at, row=dict[str, str])
        for warning in (*answer.warnings, *answer.infos):
            show.tell(f"Prometheus says: {warning}")
        return [(series.metric, series.value.value) for series in answer.rows]

    logs.set_up("default", "error")
    with show.refusals(helps=statuses.REACH_PROMETHEUS):
        return interrupts.run(ask())


def _find_access(options: settings.Settings) -> config.Access | None:
    """Whose token may be what Prometheus wants; who named no cluster needs none."""
    try:
        return config.load_access(
            kubeconfig=options.kubeconfig, context=options.context, environment=options.environment
        )
    except errors.Misconfigured:
        if options.kubeconfig or options.context:
            raise
        return None


def _write(path: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    try:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])
    except OSError as problem:
        raise click.ClickException(f"--csv: {show.plain(path)} cannot be written: {problem.strerror}") from None


query = flags.FlagCommand(
    "query", callback=_query, context_settings=flags.CONTEXT,
    params=[
        click.Argument(["promql"], metavar="PROMQL"),
        click.Option(["--at"], default=None, metavar="TIME", help="Of which instant, e.g. 2026-11-20T18:00:00Z; "
                     "default: now."),
        click.Option(["--csv", "csv_file"], default=None, metavar="FILE", help="Write it to a file, a series a line."),
        show.output_option, *where.cluster_options(),
        *(flags.flag_option(flag) for flag in settings.FLAGS if flag.name.startswith(_SOURCE)),
    ],
    help="Ask Prometheus one expression, with the login that fallow has there.\n\n\b\n"
    "  fallow query 'DCGM_FI_PROF_GR_ENGINE_ACTIVE' --csv gpus.csv\n"
    "  fallow query 'count by (Hostname) (DCGM_FI_DEV_GPU_UTIL == 0)'\n\n"
    "From outside of the cluster: kubectl -n monitoring port-forward svc/prometheus-k8s 9090, then --prometheus-url "
    "http://localhost:9090.",
)

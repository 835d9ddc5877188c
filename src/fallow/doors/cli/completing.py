"""What a shell offers for a word that is half typed, and the script that teaches it to ask: `fallow completion bash`.

Kinds come from our table, names and namespaces from the cluster, contexts from the kubeconfig.
Invariant: a shell that waits is worse than one that offers nothing: whatever fails, or takes too long, offers nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, discovery
from fallow.doors.cli import interrupts, main
from fallow.model import kinds
from fallow.wiring import reach

_PATIENCE = 0.8  # seconds, of the one after which somebody notices
_SHELLS = ("bash", "zsh", "fish")


def targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`deploy` or `deploy/llm` or, as a second word, `llm`."""
    words = ctx.params.get("target") or ()
    kind, slash, _ = incomplete.partition("/")
    if words:
        return _offer(incomplete, _ask(ctx, lambda api, own: _names(api, words[0], _place(ctx, own))))
    if slash:
        found = _ask(ctx, lambda api, own: _names(api, kind, _place(ctx, own)))
        return _offer(incomplete, [f"{kind}/{name}" for name in found])
    return _offer(incomplete, ["pod", *(row.kind.lower() for row in kinds.KINDS)])


def namespaces(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _offer(incomplete, _ask(ctx, lambda api, own: _list(api, kube.NAMESPACES, None)))


def contexts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from fallow import settings
    from fallow.clients import errors

    with contextlib.suppress(errors.ClientError):
        return _offer(incomplete, config.list_contexts(ctx.params.get("kubeconfig"), settings.environment()))
    return []


def _offer(incomplete: str, words: list[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _place(ctx: click.Context, own: str | None) -> str:
    return ctx.params.get("namespace") or own or "default"


def _ask(ctx: click.Context, question: Callable[[kube.Api, str | None], Awaitable[list[str]]]) -> list[str]:
    """The answer of the cluster, or nothing."""
    import asyncio

    from fallow.clients import errors

    async def ask() -> list[str]:
        async with reach.open_api(ctx.params.get("kubeconfig"), ctx.params.get("context")) as (api, own):
            return await asyncio.wait_for(question(api, own), _PATIENCE)

    with contextlib.suppress(errors.ClientError, TimeoutError):
        return interrupts.run(ask())
    return []


async def _names(api: kube.Api, kind: str, namespace: str) -> list[str]:
    found = await discovery.discover(api)
    keys = found.find_called(kind) | {row.key for row in kinds.KINDS if kinds.is_called(row.key, kind)}
    there = [resource for key in sorted(keys) if (resource := found.find(*key)) is not None and resource.namespaced]
    return [name for resource in there for name in await _list(api, resource, namespace)]


async def _list(api: kube.Api, resource: kube.Resource, namespace: str | None) -> list[str]:
    pages = api.list_pages(resource, item=kube.BareObject, namespace=namespace, metadata_only=True)
    return [each.metadata.name async for page in pages for each in page.items]


def _print_script(shell: str) -> None:
    made = get_completion_class(shell)
    assert made is not None, "these three are the library's own"
    click.echo(made(main.fallow, {}, "fallow", main.COMPLETE).source())


def complete_for_kubectl() -> None:
    """`kubectl_complete-fallow`, which kubectl asks for us: a word in each line, and that file names are none of it."""
    *words, incomplete = sys.argv[1:] or [""]
    for offered in ShellComplete(main.fallow, {}, main.PLUGIN, main.COMPLETE).get_completions(words, incomplete):
        click.echo(offered.value)
    click.echo(":4")


completion = click.Command(
    "completion", callback=_print_script, context_settings=main.CONTEXT,
    params=[click.Argument(["shell"], type=click.Choice(_SHELLS))],
    help="Print what teaches a shell to complete verbs, options, kinds, namespaces and names.\n\n"
    "\b\n"
    "  bash  eval \"$(fallow completion bash)\"        in ~/.bashrc\n"
    "  zsh   eval \"$(fallow completion zsh)\"         in ~/.zshrc\n"
    "  fish  fallow completion fish | source         in ~/.config/fish/config.fish",
)

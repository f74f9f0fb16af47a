"""Shell completion: `stead completion`, and the ids that a shell can complete.

Rule: fast and silent. Ids come from the service that the command would use (--address, STEAD_ADDRESS or the default
context); if it does not answer at once, or anything else fails, nothing is completed and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from stead.commands.connecting import service
from stead.commands.destinations import destination
from stead.errors import Invalid

if TYPE_CHECKING:
    from stead.operate.desk import Desk

QUICK_S = 1.0
SHOWN_MAX = 1000

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the script for shell completion.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the completion script for SHELL. It completes commands, options and contexts; if STEAD_ADDRESS or the
    default context is a service, also the ids of nodes and work.

    \b
    Examples:
      eval "$(stead completion bash)"
      stead completion zsh > ~/.zfunc/_stead
      stead completion fish > ~/.config/fish/completions/stead.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    program = click.get_current_context().find_root().command
    # Only the script: click's class for bash would start a bash to check its version.
    click.echo(ShellComplete.source(kind(program, {}, "stead", "_STEAD_COMPLETE")))
    return 0


def node_ids(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    return _known(context, begin, _nodes)


def work_ids(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    return _known(context, begin, _work)


def described(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    """`stead describe`: first the kind, then the name."""
    if parameter.name == "kind":
        return [each for each in ("node", "work", "group") if each.startswith(begin)]
    is_node = str(context.params.get("kind", "")).startswith("node")
    return (node_ids if is_node else work_ids)(context, parameter, begin)


def node_words(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    """kubectl's form: first the word `nodes`, then a node; the rest cannot be completed."""
    given = context.params.get(parameter.name or "") or ()
    if not given:
        return ["nodes"] if "nodes".startswith(begin) else []
    return node_ids(context, parameter, begin) if len(given) == 1 else []


def _known(context: click.Context, begin: str, ids: object) -> list[str]:
    with suppress(Invalid, OSError, ValueError):
        to = destination(context.params.get("address"))
        if not to.is_service:
            return []
        assert callable(ids)
        found: Iterable[str] = ids(service(to, QUICK_S))
        return sorted({each for each in found if each.startswith(begin)})
    return []


def _nodes(desk: Desk) -> Iterable[str]:
    from stead.operate.snapshot import Query

    for view in desk.nodes(Query(limit=SHOWN_MAX)).items:
        yield from filter(None, (view.id, view.name))


def _work(desk: Desk) -> Iterable[str]:
    from stead.operate.snapshot import Query

    yield from (view.id for view in desk.groups(Query(limit=SHOWN_MAX)).items)
    yield from (view.id for view in desk.work(Query(limit=SHOWN_MAX)).items)

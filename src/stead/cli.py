"""The command line: every command of `stead` by its name, and how a command ends.

Rule: a command is loaded when it is called, so that `stead --help` answers at once. Exit codes: 0 done, 1 refused or
not found, 2 wrong usage, 130 interrupted. An error is one sentence on stderr, never a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from stead.errors import Invalid, sentence

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "See the cluster": {
        "status": ("stead.commands.work", "The cluster in numbers."),
        "nodes": ("stead.commands.nodes", "List the nodes: labels, taints, what is free."),
        "work": ("stead.commands.work", "List the work: what waits, then what runs."),
        "groups": ("stead.commands.work", "List the groups."),
        "describe": ("stead.commands.describing", "Tell all that is known about a node, work or a group."),
        "top": ("stead.commands.tops", "Show which nodes are the fullest, or who uses the most."),
        "events": ("stead.commands.work", "Tell what happened: what waits and why, taints, labels."),
    },
    "Ask": {
        "why": ("stead.commands.asking", "Say why something waits, or is where it is."),
        "what-if": ("stead.commands.trying", "Show what changes would do, without making them."),
        "lint": ("stead.commands.asking", "Find what work asks for and nothing has."),
        "replay": ("stead.commands.asking", "Decide something of the past again and compare."),
    },
    "Change the cluster": {
        "taint": ("stead.commands.nodes", "Set and remove taints of a running node."),
        "label": ("stead.commands.nodes", "Set and remove labels of a running node."),
        "drain": ("stead.commands.nodes", "Let a node take no new work."),
        "uncordon": ("stead.commands.nodes", "Let a drained node take work again."),
        "audit": ("stead.commands.auditing", "Show who changed what."),
        "undo": ("stead.commands.auditing", "Take a change back."),
    },
    "Run it": {
        "start": ("stead.commands.starting", "Start a Ray node with labels and taints."),
        "up": ("stead.commands.starting", "Run several Ray nodes on this machine."),
        "serve": ("stead.commands.serving", "Serve the REST API and the web pages."),
        "token": ("stead.commands.serving", "Make, list and take back tokens for the service."),
        "context": ("stead.commands.saving", "Save services by name, each with its own token."),
        "sim": ("stead.commands.simulating", "Run a scenario in virtual time."),
        "demo": ("stead.commands.starting", "Show it all on five Ray nodes on this machine."),
        "completion": ("stead.commands.completing", "Print the script for shell completion."),
    },
}
"""Each command by what it is for: the module that has it, and one line for the help."""

_PLACES = {name: place for section in COMMANDS.values() for name, place in section.items()}


class Lazy(click.Group):
    """A group that knows its commands by name, and loads one when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_PLACES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _PLACES:
            return None
        found = getattr(import_module(_PLACES[name][0]), name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words and words[0] not in _PLACES and not words[0].startswith("-"):
            from stead.errors import did_you_mean

            hint = did_you_mean(words[0], _PLACES)
            raise click.UsageError(f"No such command {words[0]!r}{hint}.", context)
        return super().resolve_command(context, words)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, said) for name, (_, said) in section.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stead", message="%(prog)s %(version)s")
def stead() -> None:
    """stead puts work in its place, and says in plain words why something waits.

    \b
    Examples:
      stead demo
      stead status
      stead why trainer
      stead describe node gpu-1
      stead what-if --drain gpu-1
      stead taint nodes gpu-1 gpu_node=true:NoSchedule
      stead sim scenarios/demo.yaml
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        code = stead.main(args=arguments, prog_name="stead", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        _say(f"{error.format_message()}{where}")
        return USAGE
    except Invalid as error:
        _say(error)
        return REFUSED
    except OSError as error:
        _say(f"{error.filename or 'the output'} cannot be used: {error.strerror}")
        return REFUSED
    except (MemoryError, OverflowError):
        click.echo("stead: this is too large for the memory of this machine; take smaller counts", err=True)
        return REFUSED
    except (click.Abort, KeyboardInterrupt):
        click.echo("stead: interrupted", err=True)
        return INTERRUPTED


def _say(said: object) -> None:
    """One line, whatever was quoted in it."""
    click.echo(f"stead: {sentence(said)}", err=True)

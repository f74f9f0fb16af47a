"""The command line: the list of commands, and the exit code of each run.

Rule: a command's module is imported only when that command runs, so `stead --help` is fast. Exit codes: 0 success,
1 refused or not found, 2 wrong usage, 130 interrupted. An error is one sentence on stderr, never a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from stead.errors import Invalid, sentence

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "See the cluster": {
        "status": ("stead.commands.work", "Show the cluster in numbers."),
        "nodes": ("stead.commands.nodes", "List nodes with labels, taints and free resources."),
        "work": ("stead.commands.work", "List work: pending first, then running."),
        "groups": ("stead.commands.work", "List groups."),
        "describe": ("stead.commands.describing", "Show all details of a node, a piece of work or a group."),
        "top": ("stead.commands.tops", "Show the fullest nodes, or who uses the most resources."),
        "scale": ("stead.commands.scaling", "Show what the autoscaler does, and what nodes cost."),
        "events": ("stead.commands.work", "Show events: pending work and why, taints, labels."),
    },
    "Submit work": {
        "submit": ("stead.commands.submitting", "Submit work from a file, and follow it."),
        "convert": ("stead.commands.converting", "Convert work to and from Kubernetes pods."),
    },
    "Explain and preview": {
        "why": ("stead.commands.asking", "Explain why work is pending, or why it runs where it does."),
        "what-if": ("stead.commands.what_if", "Preview changes without applying them."),
        "plan": ("stead.commands.planning", "Show which new nodes pending work needs."),
        "lint": ("stead.commands.asking", "Find what work asks for and no node has."),
        "replay": ("stead.commands.asking", "Replay past decisions and compare."),
    },
    "Change the cluster": {
        "taint": ("stead.commands.nodes", "Set or remove taints of running nodes."),
        "label": ("stead.commands.nodes", "Set or remove labels of running nodes."),
        "drain": ("stead.commands.nodes", "Stop placing new work on a node."),
        "uncordon": ("stead.commands.nodes", "Let a drained node take new work again."),
        "audit": ("stead.commands.auditing", "Show who changed what."),
        "undo": ("stead.commands.auditing", "Undo a change."),
    },
    "Run stead": {
        "start": ("stead.commands.starting", "Start a Ray node with labels and taints."),
        "up": ("stead.commands.starting", "Run several Ray nodes on this machine."),
        "autoscale": ("stead.commands.autoscaling", "Launch nodes for pending work, and retire idle nodes."),
        "scheduler": ("stead.commands.scheduling", "Schedule the pods of a Kubernetes cluster."),
        "serve": ("stead.commands.serving", "Serve the REST API and the web pages."),
        "token": ("stead.commands.serving", "Create, list and revoke tokens for the service."),
        "context": ("stead.commands.saving_services", "Save services by name, each with its own token."),
        "sim": ("stead.commands.simulating", "Run a scenario in virtual time."),
        "demo": ("stead.commands.starting", "Run a demo on five Ray nodes on this machine."),
        "completion": ("stead.commands.completing", "Print the script for shell completion."),
    },
}
"""All commands by purpose: for each, the module that defines it and its line in the help."""

_PLACES = {name: place for section in COMMANDS.values() for name, place in section.items()}


class LazyGroup(click.Group):
    """A group that imports a command only when it runs."""

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
                formatter.write_dl([(name, summary) for name, (_, summary) in section.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stead", message="%(prog)s %(version)s")
def stead() -> None:
    """A scheduler for Ray and Kubernetes that explains why work is pending.

    \b
    Examples:
      stead demo
      stead status
      stead why trainer
      stead describe node gpu-1
      stead submit --to ray work.yaml -w
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
        _print_error(f"{' '.join(error.format_message().split())}{where}")  # click lists choices on lines of their own
        return USAGE
    except Invalid as error:
        _print_error(error)
        return REFUSED
    except OSError as error:
        _print_error(f"{error.filename or 'the output'} cannot be used: {error.strerror}")
        return REFUSED
    except (MemoryError, OverflowError):
        click.echo("stead: this needs more memory than this machine has; use smaller counts", err=True)
        return REFUSED
    except (click.Abort, KeyboardInterrupt):
        click.echo("stead: interrupted", err=True)
        return INTERRUPTED


def _print_error(error: object) -> None:
    """Print one line, even if the message quotes line breaks."""
    click.echo(f"stead: {sentence(error)}", err=True)

"""`stead sim`: a scenario in virtual time.

Rule: parses its arguments, runs the simulator and prints the result.
"""

from __future__ import annotations

from pathlib import Path

import click

from stead.commands.arguments import moment_of_scenario
from stead.commands.output import is_terminal
from stead.errors import Invalid

until = click.option(
    "--until",
    metavar="TIME",
    callback=moment_of_scenario,
    help="Stop the simulation at this time: 90, 90s, 5m, 2h.",
)


@click.command(short_help="Run a scenario in virtual time.")
@click.argument("scenario")
@until
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--journal", metavar="FILE", help="Write every fact and decision to this new file, for `stead replay`.")
@click.option("--seed", type=int, help="The seed of the random policy, instead of the scenario's.")
@click.option("--policy", metavar="POLICY", help="The placement policy of work that sets none, such as flow.")
def sim(
    scenario: str, until: float | None, as_json: bool, journal: str | None, seed: int | None, policy: str | None
) -> int:
    """Run the nodes and work of SCENARIO (a YAML file) in virtual time, and show where the work was placed.

    \b
    Examples:
      stead sim scenarios/demo.yaml
      stead sim scenarios/demo.yaml --until 5m --json
      stead sim scenarios/demo.yaml --journal demo.journal
      stead sim scenarios/demo.yaml --policy flow
    """
    from dataclasses import replace

    from stead.sim.cluster import run
    from stead.sim.report import as_json_text, as_text, show
    from stead.sim.scenario import load
    from stead.specs.documents import policy_of

    loaded = load(scenario, None if policy is None else policy_of(policy))
    if seed is not None:
        loaded = replace(loaded, settings=replace(loaded.settings, seed=seed))
    if journal is None:
        outcome = run(loaded, until)
    else:
        from stead.journal import Journal

        if Path(journal).exists():
            raise Invalid(f"{journal} already exists; a run needs a new journal, so give another name")
        with Journal.open(journal, loaded.settings) as written:
            outcome = run(loaded, until, written)
    if as_json:
        click.echo(as_json_text(outcome))
    elif is_terminal():
        show(outcome)
    else:
        click.echo(as_text(outcome))
    return 0

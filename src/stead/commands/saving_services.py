"""`stead context`: services saved by name, each with its address and its own token.

Rule: nothing is sent over the network. A token comes from a file, from standard input or from a hidden prompt, never
from the command line, where other users of the machine could read it; and no token is printed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from stead.commands.destinations import ADDRESS, is_service
from stead.commands.output import formatted, say, sortable, structured
from stead.commands.saved_services import SavedService, SavedServices, check_name, saved_names
from stead.errors import Invalid
from stead.operate.origins import check_token, origin_of

TOKEN_MAX = 4096


@click.group(name="context", short_help="Save services by name, each with its own token.")
def saved() -> None:
    """Save services by name, each with its address and its own token. A context's token goes to that address only.

    \b
    Examples:
      stead context add prod --address https://stead.example.com --token-file token.txt
      stead nodes --address prod
      stead context use prod
      stead context list
    """


context = saved  # the name by which `stead.cli` finds it


@saved.command(short_help="Save a service.")
@click.argument("name")
@click.option("--address", metavar="URL", required=True, help="The address of the service: https://HOST:PORT.")
@click.option("--token-file", metavar="FILE", help="A file with the token; else it is read from a pipe or a prompt.")
@click.option("--no-token", is_flag=True, help="Save no token.")
@click.option("--ca", metavar="FILE", help="Trust the certificates in this file (PEM) instead of the machine's.")
@click.option("--insecure", is_flag=True, help="Allow the token to cross the network in clear text (http://).")
@click.option("--overwrite", is_flag=True, help="Replace the context of this name.")
@formatted
def add(
    name: str,
    address: str,
    token_file: str | None,
    no_token: bool,
    ca: str | None,
    insecure: bool,
    overwrite: bool,
    form: str,
) -> int:
    """Save the service at an address as NAME, with your token for it. The token comes from --token-file, from a pipe,
    or from a hidden prompt; it is stored in a file that only you can read.

    \b
    Examples:
      stead context add prod --address https://stead.example.com --token-file token.txt
      stead context add lab --address https://10.0.0.5:8625 --ca lab-ca.pem
      stead context add here --address http://127.0.0.1:8625 --no-token
    """
    check_name(name)
    if not is_service(address):
        raise click.UsageError(f"--address {address!r} is not a service; it must look like https://HOST:PORT")
    origin = origin_of(address)
    if insecure and origin.scheme == "https":
        raise click.UsageError("--insecure is for http://; to trust your own certificate, give --ca FILE")
    if ca is not None and origin.scheme == "http":
        raise click.UsageError("--ca is for https://; an http:// address has no certificate")
    if no_token and token_file is not None:
        raise click.UsageError("give --token-file or --no-token, not both")
    if ca is not None:
        from stead.operate.http_client import trusting

        trusting(ca)
        ca = str(Path(ca).absolute())
    if not no_token and not origin.is_safe_for_tokens and not insecure:
        check_token(address, "any", insecure)  # before the prompt for the token
    token = "" if no_token else _token(token_file)
    service = SavedService(name, address.rstrip("/"), token, ca or "", insecure)
    services = SavedServices()
    services.add(service, overwrite)
    if not structured(form, _json(service, services.default())):
        how = "with a token" if token else "without a token"
        click.echo(f"context {name} saved, {how}; use it with --address {name}, or always: stead context use {name}")
    return 0


def _token(path: str | None) -> str:
    if path is not None:
        try:
            found = Path(path).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise Invalid(f"the token file {path} cannot be read: {reason}") from None
    elif sys.stdin is not None and sys.stdin.isatty():
        found = click.prompt("Token", default="", show_default=False, hide_input=True, err=True)
    else:
        found = sys.stdin.read(TOKEN_MAX + 1) if sys.stdin is not None else ""
    token = found.strip()
    if not token:
        source = path or "the input"
        raise Invalid(f"there is no token in {source}; give --token-file FILE, or --no-token to save none")
    if len(token) > TOKEN_MAX:
        raise Invalid(f"the token is too long; it may have at most {TOKEN_MAX} characters")
    return token


@saved.command("list", short_help="List the saved services.")
@sortable
def listing(order: str | None, form: str) -> int:
    """List the contexts. Tokens are not shown.

    \b
    Examples:
      stead context list
      stead context list -o json
    """
    from stead.commands.lists import FOR_PEOPLE, Column, Listing

    services = SavedServices()
    found, default = services.all(), services.default()
    columns: Listing[SavedService] = Listing(
        (
            Column("NAME", lambda service: service.name),
            Column("ADDRESS", lambda service: service.address),
            Column("TOKEN", lambda service: "yes" if service.token else "no"),
            Column("CA", lambda service: service.ca),
            Column("INSECURE", lambda service: "yes" if service.insecure else ""),
            Column("DEFAULT", lambda service: "yes" if service == default else ""),
        ),
        lambda service: service.name,
        lambda service: _json(service, default),
    )
    if not found and form in FOR_PEOPLE:
        click.echo("no contexts; add one with: stead context add NAME --address URL")
        return 0
    say(columns.text(form, found if order is None else columns.sorted(found, order)))
    return 0


@saved.command(short_help="Make a saved service the default.")
@click.argument("name", required=False, shell_complete=saved_names)
@click.option("--none", is_flag=True, help="Set no default.")
@formatted
def use(name: str | None, none: bool, form: str) -> int:
    """Use the context NAME for commands without --address, unless STEAD_ADDRESS is set.

    \b
    Examples:
      stead context use prod
      stead context use --none
    """
    if (name is None) is not none:
        raise click.UsageError("name one context, or give --none for no default")
    SavedServices().use(name or "")
    if structured(form, {"default": name or ""}):
        return 0
    click.echo(f"context {name} is the default" if name else "no context is the default")
    if name and (variable := os.environ.get(ADDRESS)):
        click.echo(f"{ADDRESS} is set to {variable}, and takes precedence.", err=True)
    return 0


@saved.command(short_help="Remove a saved service and its token.")
@click.argument("name", shell_complete=saved_names)
@formatted
def remove(name: str, form: str) -> int:
    """Remove the context NAME and its token from this machine. The service still accepts the token until you revoke it
    there (`stead token --revoke`).

    \b
    Example:
      stead context remove prod
    """
    was_default = SavedServices().remove(name)
    if not structured(form, {"name": name, "removed": True}):
        click.echo(f"context {name} removed" + ("; no context is the default now" if was_default else ""))
    return 0


def _json(service: SavedService, default: SavedService | None) -> dict[str, Any]:
    return {
        "name": service.name,
        "address": service.address,
        "has_token": bool(service.token),
        "ca": service.ca,
        "insecure": service.insecure,
        "default": default is not None and default.name == service.name,
    }

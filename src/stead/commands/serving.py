"""`stead serve`, `token`: the REST API and the web pages, and who may use them.

Rule: closed by default. On another address than loopback every request needs a token, and the service does not start
before there is one. With --tls-cert it serves only TLS. A token is printed only when it is created; it is in no URL and
in no log. Sampling and the webhook run in their own threads, beside the requests.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stead.commands.arguments import duration
from stead.commands.connecting import Where, attached, served
from stead.commands.destinations import ADDRESS, named
from stead.commands.kubernetes import kubernetes_desk
from stead.commands.output import columns, formatted, structured
from stead.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from stead.operate.desk import Desk
    from stead.operate.usage import History
    from stead.service.keys import Keys
    from stead.service.webhook import Webhook

PORT = 8625
GRACE_S = 1
"""How long open streams may take to end."""

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2; all ciphers of 1.3 are good, and older versions are off."""

WILDCARDS = ("0.0.0.0", "::")
NEEDED = ("fastapi", "uvicorn", "httptools", "jinja2")
WEBHOOK_PENDING_S = 600.0
WEBHOOK_SECRET = "STEAD_WEBHOOK_SECRET"


@click.command(short_help="Serve the REST API and the web pages.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. If it is not loopback, every request needs a token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 is any free port.",
)
@click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="A host name that clients may use.")
@click.option("--tls-cert", "certificate", metavar="FILE", help="Serve https:// with this certificate (PEM).")
@click.option("--tls-key", "key", metavar="FILE", help="The private key of the certificate (PEM).")
@click.option("--speed", type=click.FloatRange(0, 1_000_000), default=1.0, help="Playback speed; 0 pauses the clock.")
@click.option("--title", metavar="TEXT", help="The cluster's title in pages and /status.")
@click.option("--webhook", "hook", metavar="URL", help="Send a message to this URL when work is pending for too long.")
@click.option(
    "--webhook-pending",
    "pending_s",
    metavar="TIME",
    callback=duration,
    help="How long is too long: 90s, 10m, 2h.  [default: 10m]",
)
@click.option("--webhook-secret-file", "secret", metavar="FILE", help=f"Secret to sign with; else {WEBHOOK_SECRET}.")
@click.option("--quiet", is_flag=True, help="Do not log requests.")
@served
def serve(
    host: str,
    port: int,
    allowed: tuple[str, ...],
    certificate: str | None,
    key: str | None,
    speed: float,
    title: str | None,
    hook: str | None,
    pending_s: float | None,
    secret: str | None,
    quiet: bool,
    where: Where,
) -> int:
    """Serve the REST API and the web pages of a Ray cluster, a Kubernetes cluster or a simulation, until Ctrl-C.

    On a Kubernetes cluster, the service has the rights of your user, and passes them on to everybody with a token.

    On loopback, reading needs no token and changes need one. On any other address everything needs a token, and you
    must create one before it starts (`stead token`).

    \b
    Examples:
      stead serve
      stead serve --address 10.0.0.1:6379 --port 8080
      stead serve --context staging
      stead serve --scenario scenarios/demo.yaml
      stead serve --host 0.0.0.0 --allow-host stead.example.com --tls-cert cert.pem --tls-key key.pem
      stead serve --title "Training" --webhook https://hooks.example.com/stead --webhook-pending 30m
    """
    if where.address is not None and named(where.address).is_service:
        raise click.UsageError(f"{where.address} is a service; --address must be a Ray cluster, HOST:PORT")
    if (certificate is None) is not (key is None):
        raise click.UsageError("TLS needs a certificate and its key, for example --tls-cert cert.pem --tls-key key.pem")
    if hook is None and (pending_s is not None or secret is not None):
        raise click.UsageError("--webhook-pending and --webhook-secret-file need a webhook; give --webhook URL too")
    tls = Tls(certificate, key) if certificate is not None and key is not None else None
    _require_server()
    from stead.operate.origins import is_loopback
    from stead.service.app import titled
    from stead.service.keys import Keys
    from stead.service.webhook import Receiver, Webhook, secret_of

    receiver = None if hook is None else Receiver(hook, secret_of(secret))
    keys = Keys()
    is_open = is_loopback(host)
    if not is_open:
        _require_token(host, keys)
    with _listening(host, port) as listening, _desk(where, speed) as desk:
        keys.operator_token()  # created now, so that commands find it
        history = _history(desk, is_kept=where.scenario is None)
        desk = desk if title is None else titled(desk, title)
        names = [name.lower() for name in allowed] + ([host.lower()] if host not in WILDCARDS else [])
        webhook = Webhook(desk, receiver, pending_s or WEBHOOK_PENDING_S) if receiver else None
        _tell(desk, host, listening.getsockname()[1], bool(allowed), tls)
        with _watching(desk, history, webhook):
            _run(desk, keys, names, is_open, listening, quiet, tls, history)
    return 0


@dataclass(frozen=True)
class Tls:
    """A usable certificate and its key."""

    certificate: str
    key: str

    def __post_init__(self) -> None:
        for option, path in (("--tls-cert", self.certificate), ("--tls-key", self.key)):
            try:
                Path(path).read_bytes()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "this is not a path"
                raise Invalid(f"{option} {path} cannot be read: {reason}; give a file in PEM form") from None
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, lambda: "")
        except ssl.SSLError as error:
            raise Invalid(self._unusable(error)) from None

    def _unusable(self, error: ssl.SSLError) -> str:
        if error.reason == "KEY_VALUES_MISMATCH":
            return (
                f"--tls-key {self.key} is not the key of --tls-cert {self.certificate}; give a certificate and its key"
            )
        what = f"--tls-cert {self.certificate} and --tls-key {self.key} cannot be used"
        return f"{what}; give a certificate and its key in PEM form, the key without a password"

    @property
    def settings(self) -> dict[str, Any]:
        """For `uvicorn.Config`."""
        return {"ssl_certfile": self.certificate, "ssl_keyfile": self.key, "ssl_ciphers": CIPHERS}


def _require_server() -> None:
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in NEEDED):
        raise Unsupported("stead serve needs a web server; install it with pip install 'stead[server]'")


def _require_token(host: str, keys: Keys) -> None:
    if not keys.known_operator_token() and not keys.names():
        good = "stead token --role operator --name NAME"
        raise Invalid(f"on {host} every request needs a token, and there is none yet; create one first: {good}")


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
            found.listen(2048)
        except (OSError, UnicodeError) as error:
            raise Invalid(_in_words(error, host, port)) from None
        yield found


def _in_words(error: Exception, host: str, port: int) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return f"port {port} of {host} is in use; give another, for example --port 0 for any free port"
        case errno.EACCES:
            return f"port {port} of {host} is reserved for root; give one from 1024 up, for example --port {PORT}"
    return f"{host!r} is not an address of this machine; good ones are 127.0.0.1 and 0.0.0.0"


@contextmanager
def _desk(where: Where, speed: float) -> Iterator[Desk]:
    """The desk of a cluster, or of a simulation whose files are deleted afterwards."""
    if where.is_kubernetes:
        with kubernetes_desk("serve", where.kube, is_served=True) as desk:
            yield desk
        return
    if where.scenario is None:
        chosen = where.address or os.environ.get(ADDRESS) or None
        if chosen is not None and named(chosen).is_service:
            raise Invalid(f"{ADDRESS} is {chosen}, a service; choose the Ray cluster to serve: --address HOST:PORT")
        with attached("serve", chosen):
            from stead.ray.remote_desk import remote_desk

            yield remote_desk()
        return
    from stead.sim.desk import SimDesk
    from stead.sim.scenario import load

    with tempfile.TemporaryDirectory(prefix="stead-serve-") as folder:
        simulated = SimDesk(load(where.scenario), Path(folder), where.until, speed)
        try:
            yield simulated
        finally:
            simulated.close()


def _history(desk: Desk, is_kept: bool) -> History:
    """Usage over time; for a cluster it is kept in its own file, so that it survives a restart."""
    from stead.operate.usage import History
    from stead.service.keys import home

    if not is_kept:
        return History()
    found = desk.summary()
    cluster = hashlib.sha256(f"{found.kind} {found.title}".encode(errors="surrogatepass")).hexdigest()[:16]
    return History(home() / f"use-{cluster}.json")


@contextmanager
def _watching(desk: Desk, history: History, webhook: Webhook | None) -> Iterator[None]:
    from stead.operate.usage import Sampler

    snapshot = getattr(desk, "snapshot", None)
    with ExitStack() as stack:
        if snapshot is not None:
            stack.enter_context(Sampler(snapshot, history).running())
        if webhook is not None:
            stack.enter_context(webhook.running())
        yield


def _tell(desk: Desk, host: str, port: int, has_names: bool, tls: Tls | None) -> None:
    """Print where it is and where the token is; never the token."""
    from stead.operate.origins import is_loopback
    from stead.service.keys import home

    found = desk.summary()
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"{found.kind} {found.title}".strip() + f" is served at {'https' if tls else 'http'}://{shown}:{port}")
    file = home() / "token"
    click.echo(f"Changes need a token; the operator's is in {file}, and your commands on this machine use it.")
    if tls is None and not is_loopback(host):
        click.echo("Tokens cross the network in clear text; give --tls-cert and --tls-key, or use a proxy with TLS.")
    if host in WILDCARDS and not has_names:
        click.echo("It accepts only the host name localhost; allow others with --allow-host NAME.")
    click.echo("Press Ctrl-C to stop.")
    sys.stdout.flush()


def _run(
    desk: Desk,
    keys: Keys,
    names: list[str],
    is_open: bool,
    listening: socket.socket,
    quiet: bool,
    tls: Tls | None,
    history: History,
) -> None:
    """Run until Ctrl-C or SIGTERM, and then shut down cleanly."""
    import uvicorn

    from stead.service.app import create_app
    from stead.service.listening import SETTINGS, settle

    app: Any = create_app(desk, keys, names, open_reads=is_open, history=history)
    settings = {**SETTINGS, **(tls.settings if tls else {})}
    config = uvicorn.Config(app, **settings, access_log=not quiet, timeout_graceful_shutdown=GRACE_S)
    _log_to_stderr(quiet)
    settle()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listening])
    finally:
        signal.signal(signal.SIGTERM, before)


def _log_to_stderr(quiet: bool) -> None:
    """Errors, and a line for each request: who, what and the outcome; no query and no header, so no token."""
    writing = logging.StreamHandler(sys.stderr)
    writing.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    levels = {"uvicorn.error": logging.WARNING, "uvicorn.access": logging.INFO, "stead": logging.WARNING}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [writing], False
        logger.setLevel(logging.CRITICAL if quiet and name == "uvicorn.access" else level)
    logging.getLogger("uvicorn.access").filters = [_without_query]
    logging.getLogger("uvicorn.error").filters = [_is_no_ending]


def _without_query(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, path, version, status = record.args
        record.args = (client, method, str(path).partition("?")[0], version, status)
    return True


def _is_no_ending(record: logging.LogRecord) -> bool:
    """Drops the error that a stream was cut by the shutdown."""
    ended = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not ended and not str(record.msg).startswith("Cancel ")


# -- tokens


@click.command(short_help="Create, list and revoke tokens for the service.")
@click.option("--role", type=click.Choice(["viewer", "operator"]), help="A viewer can read, an operator can change.")
@click.option("--name", metavar="NAME", help="The owner of the token; the audit shows it.")
@click.option("--list", "listing", is_flag=True, help="List the tokens.")
@click.option("--revoke", metavar="NAME", help="Revoke this token; it is refused from now on.")
@formatted
def token(role: str | None, name: str | None, listing: bool, revoke: str | None, form: str) -> int:
    """Create a token, and print it once; only its digest is stored. Your services on this machine accept it at once.

    \b
    Examples:
      stead token --role viewer --name grafana
      stead token --list
      stead token --revoke grafana
    """
    from stead.service.keys import Keys

    making = role is not None or name is not None
    if making + listing + (revoke is not None) != 1:
        raise click.UsageError("create a token with --role and --name, or give --list, or --revoke NAME")
    keys = Keys()
    if revoke is not None:
        keys.take_back(revoke)
        if not structured(form, {"name": revoke, "revoked": True}):
            click.echo(f"the token of {revoke} is revoked")
        return 0
    if listing:
        found = keys.names()
        if not structured(form, [{"name": each, "role": kind} for each, kind in found]):
            click.echo(columns([("NAME", "ROLE"), *found]) if found else "no tokens")
        return 0
    if role is None or name is None:
        raise click.UsageError("a new token needs a role and a name, for example --role viewer --name grafana")
    made = keys.give(role, name)
    if not structured(form, {"name": name, "role": role, "token": made}):
        click.echo(made)
        click.echo(
            f"The token of {name} ({role}); it is not shown again. Set STEAD_TOKEN, or send it as a Bearer token.",
            err=True,
        )
    return 0

"""The origin of a service: its scheme, host and port. A token belongs to one origin.

Rule: an address is parsed strictly, so that every part of stead sees the same host in it. A token never crosses a
network in clear text, unless its owner allows that for this one address.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from stead.errors import Invalid

PORTS = {"http": 80, "https": 443}
GOOD = "http://127.0.0.1:8625"

_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))"
    r"(?::(?P<port>[0-9]{1,5}))?(?:/[A-Za-z0-9._~%/-]*)?"
)


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Whether a host is this machine: 127.0.0.0/8, ::1 or localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether requests stay on this machine."""
        return is_loopback(self.host)

    @property
    def is_safe_for_tokens(self) -> bool:
        """Whether nobody on the network can read what is sent there."""
        return self.scheme == "https" or self.is_loopback


def origin_of(address: str) -> Origin:
    """The origin of a service address, which has no user name, query or fragment."""
    found = _ADDRESS.fullmatch(address)
    port = int(found["port"] or PORTS[found["scheme"]]) if found else 0
    if not found or not 0 < port < 65536:
        raise Invalid(f"address {address!r} must look like {GOOD}")
    host = (found["name"] or "").lower()
    if found["six"]:
        try:
            host = ipaddress.IPv6Address(found["six"]).compressed
        except ValueError:
            raise Invalid(f"address {address!r} must look like http://[::1]:8625") from None
    return Origin(found["scheme"], host, port)


def check_token(address: str, token: str, insecure: bool) -> None:
    """Refuse a token that cannot be sent to this address. The error never shows the token."""
    if not token:
        return
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid("the token contains a space, a line break or another invalid character; a token is one word")
    if not origin_of(address).is_safe_for_tokens and not insecure:
        raise Invalid(
            f"the token would cross the network to {address} in clear text; use https:// (start the service with: "
            "stead serve --tls-cert FILE --tls-key FILE), or allow it with: "
            f"stead context add NAME --address {address} --insecure"
        )

"""*Hosts*: which Host headers are answered, against DNS rebinding."""

from __future__ import annotations

import ipaddress
import socket

from omlx.server.keys import is_loopback


class Hosts:
    """Which Host headers a server bound to loopback answers; bound to anything else it answers all.

    `address`: of the socket that listens. `name`: what the setting calls it, which is a name of the server too.
    """

    def __init__(self, address: str, name: str = "") -> None:
        self.checked = is_loopback(address)
        self.own_names = {"", "localhost", socket.gethostname().lower()}
        if not is_address(name):
            self.own_names.add(name.lower())

    def allow(self, header: str) -> bool:
        if not self.checked:
            return True
        host = split_port(header).lower()
        return self.named(header) or (is_address(host) and _is_local(host))

    def named(self, header: str) -> bool:
        """Allowed as a *name* (an address does not count)."""
        host = split_port(header).lower()
        return host in self.own_names or host.endswith((".localhost", ".local", ".internal"))


def split_port(header: str) -> str:
    """Host of a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0] if header.count(":") == 1 else header


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_local(host: str) -> bool:
    address = ipaddress.ip_address(host)
    if address.is_loopback or address.is_private or address.is_unspecified:
        return True
    import psutil  # rarely needed, and not free to import

    own = (entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries)
    return any(is_address(text) and ipaddress.ip_address(text) == address for text in own)

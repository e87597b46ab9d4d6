"""Pictures by URL, where that is switched on: from public addresses only.

Whoever can make a server fetch a URL can make it look into the server's own network. So a name is resolved once, every
address it has must be public, and the connection goes to the address that was checked, not to the name once more: a
name that changes its address between the check and the use gains nothing. Redirects are not followed by the library
but checked like any other URL.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from meshcap.serving.limits import RefusalError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
PORTS = {"http": 80, "https": 443}
REDIRECTS = 3
CHUNK = 65536
# For special purposes (RFC 6890, 7526), whatever this Python's tables say: they differ between its releases.
SPECIAL = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "100.64.0.0/10")))
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # an IPv4 address in its last 32 bits


def is_public(address: Address) -> bool:
    """Whether an address, and an IPv4 address that it holds, is one of the open internet."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in NAT64 or int(address) < 2**32:  # the latter: "IPv4-compatible", long out of use
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if any(one is not None and not is_public(one) for one in inner) or address.is_site_local:
            return False
        if any(inner):
            return True
    if any(address.version == network.version and address in network for network in SPECIAL):
        return False
    return address.is_global and not (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
    )


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def connect(address: str, port: int, timeout: float) -> socket.socket:
    return socket.create_connection((address, port), timeout)


@dataclass(frozen=True)
class Fetcher:
    """Fetches within limits. `resolve` and `connect` are given by tests, which never leave the machine."""

    most_bytes: int
    seconds: float = 10.0
    resolve: Callable[[str, int], list[str]] = resolve
    connect: Callable[[str, int, float], socket.socket] = connect

    def __call__(self, url: str) -> bytes:
        """What is at a URL.

        Raises:
            RefusalError: 422 for a URL that is not allowed or gives nothing, 413 for too many bytes.
        """
        until = time.monotonic() + self.seconds
        try:
            for _ in range(1 + REDIRECTS):
                found = self._get(url, until)
                if isinstance(found, bytes):
                    return found
                url = urljoin(url, found)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, RefusalError):
                raise
            raise RefusalError(422, f"the URL could not be fetched: {type(error).__name__}") from error
        raise RefusalError(422, f"the URL leads to more than {REDIRECTS} others: expected the picture's own")

    def _get(self, url: str, until: float) -> bytes | str:
        """The content, or where it has moved."""
        parts = self._allowed(url)
        host, port = parts.hostname or "", PORTS[parts.scheme]
        raw = self._connected(self._addresses(host, port), port, until)
        # A host that sends a byte now and then is never late by any timeout of a socket: the line is cut instead.
        line = raw.dup()
        cut = threading.Timer(self._left(until), _cut, [line])
        cut.daemon = True
        cut.start()
        connection = _connection(parts.scheme, host, port, raw)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "meshcap"})
            answer = connection.getresponse()
            if answer.status in (301, 302, 303, 307, 308):
                return answer.getheader("Location") or ""
            if answer.status != 200:
                raise RefusalError(422, f"the URL answered with status {answer.status}: expected a picture")
            content = bytearray()
            while chunk := answer.read1(CHUNK):
                content += chunk
                if len(content) > self.most_bytes:
                    raise RefusalError(
                        413, f"the URL holds more than {self.most_bytes:,} bytes: expected a smaller one"
                    )
            self._left(until)  # a line that was cut looks like an end
            if answer.length:
                raise RefusalError(422, "the URL gave less than it promised: expected a whole picture")
            return bytes(content)
        except (OSError, http.client.HTTPException):
            self._left(until)  # says so if it was cut
            raise
        finally:
            cut.cancel()
            line.close()
            raw.close()
            connection.close()

    def _left(self, until: float) -> float:
        if (left := until - time.monotonic()) <= 0:
            raise RefusalError(422, f"the URL took more than {self.seconds:g} s: expected a faster one")
        return left

    def _allowed(self, url: str) -> SplitResult:
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise RefusalError(422, "the URL is none of the web: expected http:// or https:// and a host")
        if parts.port not in (None, PORTS[parts.scheme]) or parts.username or parts.password:
            raise RefusalError(422, "the URL has a port or a password: expected neither")
        if any(ord(sign) <= 32 or ord(sign) > 126 for sign in url):
            raise RefusalError(422, "the URL has signs that are not allowed in one: expected them %-encoded")
        return parts

    def _addresses(self, host: str, port: int) -> list[str]:
        """Those of a name, all of them public; the message does not tell which is not."""
        addresses = self.resolve(host, port)
        if not addresses or not all(is_public(ipaddress.ip_address(one.partition("%")[0])) for one in addresses):
            raise RefusalError(422, "the URL is not of a public address: expected one of the open internet")
        return addresses

    def _connected(self, addresses: list[str], port: int, until: float) -> socket.socket:
        """To the first that answers."""
        failed = OSError("no address")
        for address in addresses:
            try:
                return self.connect(address, port, self._left(until))
            except OSError as error:
                failed = error
        raise failed


def _connection(scheme: str, host: str, port: int, raw: socket.socket) -> http.client.HTTPConnection:
    """A connection that speaks to `host`, certificate included, over a socket that was opened elsewhere."""

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock: Any = raw

    class Secure(http.client.HTTPConnection):
        default_port = 443

        def connect(self) -> None:
            self.sock: Any = ssl.create_default_context().wrap_socket(raw, server_hostname=host)

    return (Secure if scheme == "https" else Plain)(host, port)


def _cut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)

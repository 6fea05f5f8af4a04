"""Which web pages may drive this door: those that it served itself, and those that its operator named.

A browser lets any page of the web send requests to any address, also to 127.0.0.1, and says only in headers where they
come from. Nothing else asks for these headers, so programs and curl never notice these rules:

- `Origin` must be the door itself, that is, the address that the request was sent to; or one that was allowed.
- Where a request has no `Origin`, `Sec-Fetch-Site` must not say that another site made it. Links to the documents are
  fine: those never change anything.
- On a broker that only this machine can reach, `Host` must be a name of this machine: else a page could give its own
  name the address 127.0.0.1 (DNS rebinding), and would be of the same origin as the broker. Ports do not matter, as
  they change on the way through a tunnel.

An allowed page also gets the headers with which its browser lets it see the answers (CORS).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from lanner.errors import LannerError, PermissionDenied, ValidationError

ANY: Final = "*"
_DOCUMENTS: Final = frozenset({"/docs", "/openapi.json"})
_OWN_SITES: Final = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_LENGTH_MAX: Final = 200
Headers = list[tuple[bytes, bytes]]


class Gate:
    """The rules of one door."""

    def __init__(self, host: str = "", *, allowed: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._allowed = {origin_of(origin) for origin in allowed}
        self._names = {_plain(name) for name in names if name} | {"localhost"}
        self._names |= {urlsplit(origin).hostname or "" for origin in self._allowed}
        if host:
            self._names.add(_plain(host))
        self._local = is_loopback(host) if host else False

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> LannerError | None:
        """Why a request is refused; None: it is not."""
        host = _text(headers.get(b"host", b""))
        if host and self._local and not self._is_ours(host):
            return PermissionDenied(
                f"the request is for {host!r}, which is not a name of this broker: use 127.0.0.1 or localhost, or "
                f"start the broker with --allow-origin http://{host}",
                field="Host",
            )
        if (given := headers.get(b"origin")) is not None:
            origin = _text(given)
            if not self.allows(origin) and not self._is_own_page(origin, host):
                return _refusal(f"a web page of {origin}", origin)
        elif headers.get(b"sec-fetch-site", b"none") not in _OWN_SITES and path not in _DOCUMENTS:
            return _refusal("a web page of another site", "http://HOST:PORT")
        return None

    def allows(self, origin: str) -> bool:
        """Whether the operator let pages of this origin in."""
        return ANY in self._allowed or origin.lower() in self._allowed

    def _is_ours(self, authority: str) -> bool:
        host = _host_of(authority)
        return host in self._names or is_loopback(host)

    def _is_own_page(self, origin: str, host: str) -> bool:
        """Whether a page came from here: from the address that its request goes to, where that is no borrowed name."""
        parts = _split(origin)
        if parts is None or not host:
            return False
        scheme, name, port = parts
        target = _split(f"{scheme}://{host}")
        return target == (scheme, name, port) and (name in self._names or _is_literal(name))


def origin_of(text: str) -> str:
    """An origin as browsers write it, from what an operator wrote; `*` is any of them, `null` that of local files."""
    parts = _split(text.rstrip("/"))
    if text in (ANY, "null"):
        return text
    if parts is None:
        raise ValidationError(
            f"allow_origin is {text!r}: give SCHEME://HOST:PORT as a browser shows it, such as http://localhost:3000",
            field="allow_origin",
        )
    scheme, host, port = parts
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" if port == _DEFAULT_PORTS[scheme] else f"{scheme}://{shown}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def cors_headers(origin: bytes) -> Headers:
    """With these a browser shows an answer to the page that asked."""
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]


def preflight_headers(asked: Mapping[bytes, bytes]) -> Headers:
    """With these a browser sends what a page wants to send."""
    return [
        (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE"),
        (b"access-control-allow-headers", asked.get(b"access-control-request-headers", b"content-type")[:1_000]),
        (b"access-control-max-age", b"600"),
    ]


def _refusal(who: str, origin: str) -> PermissionDenied:
    return PermissionDenied(
        f"{who} may not drive this broker; to let it, start the broker with --allow-origin {origin}", field="Origin"
    )


def _text(header: bytes) -> str:
    return header[:_LENGTH_MAX].decode("latin-1")


def _split(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None where that is not what the text says."""
    try:
        parts = urlsplit(origin)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    rest = parts.path or parts.query or parts.fragment or parts.username
    if parts.scheme not in _DEFAULT_PORTS or not host or rest:
        return None
    return parts.scheme, _plain(host), port or _DEFAULT_PORTS[parts.scheme]


def _host_of(authority: str) -> str:
    parts = _split(f"http://{authority}")
    return "" if parts is None else parts[1]


def _plain(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True

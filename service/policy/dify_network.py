"""Which addresses Dify's nodes reach: the rules of the proxy (squid) in front of them.

Measured on Dify 1.13 to 1.17. HTTP nodes, custom tools and external knowledge pass it; the import of a
tool by URL and model plugins do not.
"""

import ipaddress
from typing import Final, Literal
from urllib.parse import urlsplit

# squid's "safe ports" for plain HTTP, besides 80.
_HTTP_PORTS_FROM: Final = 1025

# not_a_url: no whole http(s) URL. slash: paths are joined as text, so that it would be doubled.
# https_port, http_port: the proxy lets the port not pass. localhost: the proxy itself.
# private: denied since Dify 1.15 unless it is allowed by name.
AddressFault = Literal["not_a_url", "slash", "https_port", "http_port", "localhost", "private"]


def address_faults(url: str) -> list[AddressFault]:
    """What keeps Dify's nodes from reaching `url`; a host name may still stand for a private address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ["not_a_url"]
    if parts.scheme not in ("http", "https") or not host:
        return ["not_a_url"]
    faults: list[AddressFault] = ["slash"] if url.endswith("/") else []
    if parts.scheme == "https" and port not in (None, 443):
        faults.append("https_port")
    if parts.scheme == "http" and port not in (None, 80) and port < _HTTP_PORTS_FROM:
        faults.append("http_port")
    address = _address(host)
    if host == "localhost" or host.endswith(".localhost") or (address and _is_here(address)):
        faults.append("localhost")
    elif address and address.is_private:
        faults.append("private")
    return faults


def is_inner_name(url: str) -> bool:
    """Whether the host's name only means something inside a network: `memory`, `host.docker.internal`.

    Such names lead to private addresses, which Dify denies since 1.15.
    """
    host = urlsplit(url).hostname or ""
    return not _address(host) and ("." not in host or host.endswith((".internal", ".local", ".lan")))


def _is_here(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_loopback or address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None

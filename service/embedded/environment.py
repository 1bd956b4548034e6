"""The environment that children get: this process's own, without what would change them unasked."""

from collections.abc import Mapping

# PG* redirects every PostgreSQL client, HINDSIGHT_* every part of Hindsight; MEMORY_* holds our keys.
_FOREIGN = ("PG", "HINDSIGHT_", "MEMORY_")
_LOOPBACK = ("127.0.0.1", "localhost")


def for_server(base: Mapping[str, str], **extra: str) -> dict[str, str]:
    """Environment of a server that is not ours: no settings but `extra`, no proxy for loopback."""
    kept = {name: value for name, value in base.items() if not name.startswith(_FOREIGN)}
    return {**kept, **_without_proxy(base), **extra}


def for_ours(base: Mapping[str, str], **extra: str) -> dict[str, str]:
    """Environment of the API and the worker: all settings, `extra` above them, no proxy for loopback."""
    return {**base, **_without_proxy(base), **extra}


def _without_proxy(base: Mapping[str, str]) -> dict[str, str]:
    known = [
        host for name in ("no_proxy", "NO_PROXY") for host in base.get(name, "").split(",") if host.strip()
    ]
    hosts = ",".join(dict.fromkeys([*known, *_LOOPBACK]))
    return {"no_proxy": hosts, "NO_PROXY": hosts}

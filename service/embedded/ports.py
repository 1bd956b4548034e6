"""Which TCP ports the stack takes, and telling whether one is free."""

import errno
import random
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from service.embedded.errors import LocalStackError

LOOPBACK = "127.0.0.1"
_LISTENING = "0A"  # the state in /proc/net/tcp
# Below the range that Linux hands to outgoing connections (32768 and up): while a child is down nobody
# gets its port by chance, and a client that knocks meanwhile cannot connect to itself.
_INTERNAL_PORTS = range(20_000, 30_000)
_DYING_S = 2.0


class Listener(Protocol):
    """A server on a loopback port that we chose; its recipe reads the port anew before every start."""

    port: int


def is_free(host: str, port: int) -> bool:
    """Whether a server can listen on `host:port` now.

    Raises:
        LocalStackError: this machine or user can never listen there.
    """
    try:
        sockets = _bind(host, port)
    except PortTaken:
        return False
    try:
        for candidate in sockets:
            candidate.listen(1)  # two sockets may be bound with SO_REUSEADDR, but only one may listen
    except OSError:
        return False
    finally:
        for candidate in sockets:
            candidate.close()
    return True


class Reservation:
    """Holds a port until the process that will serve it has the sockets; meanwhile callers are refused.

    Raises:
        PortTaken: somebody has the port.
        LocalStackError: this machine or user can never listen there.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._sockets: list[socket.socket] = []
        self.hold()

    @property
    def fds(self) -> tuple[int, ...]:
        """The sockets for the process to listen on; none once they were released."""
        return tuple(holder.fileno() for holder in self._sockets)

    def hold(self) -> None:
        """Have the port (again); raises as the constructor does."""
        if self._sockets:
            return
        self._sockets = _bind(self.host, self.port)
        for holder in self._sockets:
            # From here on Linux lets nobody else bind or listen there, although nobody does listen.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    def release(self) -> None:
        """Leave the port to whoever was given the sockets, or else to everybody; repeatable."""
        while self._sockets:
            self._sockets.pop().close()


class PortTaken(LocalStackError):
    """Somebody else has the port."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"Port {port} on {host} is already in use; stop what uses it.")


def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets bound as a server would bind them: all addresses of the host that this machine has."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        raise LocalStackError(f"The host name {host!r} is unknown; set MEMORY_HOST or --host.") from exc
    bound: list[socket.socket] = []
    missing: OSError | None = None
    for family, kind, protocol, _, address in found:
        candidate = socket.socket(family, kind, protocol)
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if family == socket.AF_INET6:
                candidate.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            candidate.bind(address)
        except OSError as exc:
            candidate.close()
            if exc.errno == errno.EADDRNOTAVAIL:  # `localhost` may name an IPv6 address that is not there
                missing = exc
                continue
            for other in bound:
                other.close()
            if exc.errno == errno.EADDRINUSE:
                raise PortTaken(host, port) from exc
            raise _cannot(host, port, exc) from exc
        bound.append(candidate)
    if not bound and missing is not None:
        raise _cannot(host, port, missing) from missing
    return bound


def _cannot(host: str, port: int, error: OSError) -> LocalStackError:
    return LocalStackError(
        f"Cannot listen on {host} port {port} ({error.strerror}); "
        "choose another with --host and --port, or MEMORY_HOST and MEMORY_PORT."
    )


def listens(pid: int, port: int) -> bool:
    """Whether process `pid` is the one that listens on TCP `port`; True if the system does not tell.

    A process that has ended listens to nothing, also while nobody has asked for its exit code yet.
    """
    found: set[str] = set()
    try:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENING and int(cells[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{cells[9]}]")
    except (OSError, ValueError, IndexError):
        return True
    try:
        # After the name in parentheses: the state, Z for one that has ended.
        if Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] in "ZX":
            return False
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    for link in links:
        with suppress(OSError):  # closed just now
            if str(link.readlink()) in found:
                return True
    return False


def reserve(host: str, wanted: int, *, is_explicit: bool) -> Reservation:
    """The API's port, held: the wanted one, or the next free one if nobody asked for exactly that one.

    Raises:
        LocalStackError: the port that was asked for is taken, or none of the next 100 is free.
    """
    # A stack that was killed a moment ago may still be closing its sockets.
    patient_until = time.monotonic() + (_DYING_S if is_explicit else 0)
    while not is_free(host, wanted) and time.monotonic() < patient_until:
        time.sleep(0.05)
    for port in [wanted] if is_explicit else range(wanted, min(wanted + 101, 65_536)):
        if is_free(host, port):
            try:
                return Reservation(host, port)
            except PortTaken:
                continue  # just now
    if is_explicit:
        raise LocalStackError(
            f"Port {wanted} on {host} is already in use; stop what uses it, or choose another one "
            "with --port or MEMORY_PORT."
        )
    raise LocalStackError(
        f"Port {wanted} on {host} and the 100 after it are in use; choose one with --port or MEMORY_PORT."
    )


def internal_port(remembered: int | None, taken: set[int]) -> int:
    """A free loopback port, the remembered one if it still is, and none of `taken`."""
    if remembered is not None and remembered not in taken and is_free(LOOPBACK, remembered):
        return remembered
    for port in random.sample(_INTERNAL_PORTS, k=200):
        if port not in taken and is_free(LOOPBACK, port):
            return port
    raise LocalStackError("No free loopback port was found between 20000 and 29999.")

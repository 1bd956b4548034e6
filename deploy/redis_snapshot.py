"""`redis_snapshot.py`: a snapshot of Redis to the output; `redis_snapshot.py ping`: exit status 0 if it runs.

What `valkey-cli --rdb -` and `valkey-cli ping` do, for machines that have no such program; with the standard
library only. The server is the one of MEMORY_REDIS_URL: `redis://`, `rediss://` (with `?ssl_ca_certs=FILE` if
need be) or `unix://`, password included. Exit status 3: nobody listens there; 2: something else is wrong.
"""

import os
import socket
import ssl
import sys
from io import BufferedReader
from typing import BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

# A server that prepares a snapshot sends a line now and then.
_TIMEOUT_S = 60
_CHUNK = 1 << 20
_MARK_LENGTH = 40


class Trouble(Exception):
    """Why there is no snapshot, in one sentence."""


class NobodyListens(Trouble):
    """There is no server at the address."""


class Connection:
    """One connection to the server of `url`; close it with `close`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise Trouble(
                "MEMORY_REDIS_URL has to begin with redis://, rediss:// or unix://; or set REDIS_CLI."
            )
        try:
            self._socket = _socket_to(url)
        except (ConnectionRefusedError, FileNotFoundError, socket.gaierror) as exc:
            raise NobodyListens("No Redis listens at MEMORY_REDIS_URL.") from exc
        self._lines: BufferedReader = self._socket.makefile("rb")
        self._login = [unquote(word) for word in (parts.username or "", parts.password or "") if word]

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()

    def ask(self, *words: str) -> str:
        """Send a command; the reply's line without its first character, or raise `Trouble`."""
        self._send(*words)
        return self._reply()

    def log_in(self) -> None:
        """Give the password, if the URL has one."""
        if self._login:
            self.ask("AUTH", *self._login)

    def copy_snapshot(self, sink: BinaryIO) -> None:
        """Write what a replica is sent first. Only when this returns is it whole."""
        for setting in (("rdb-only", "1"), ("capa", "eof")):
            self.ask("REPLCONF", *setting)
        self._send("SYNC")
        header = self._reply()
        if header.startswith("EOF:"):
            self._copy_to_mark(sink, header[4:].encode())
        else:
            self._copy_length(sink, int(header))

    def _copy_length(self, sink: BinaryIO, left: int) -> None:
        if left <= 0:
            raise Trouble("Redis announced no snapshot.")
        while left:
            chunk = self._lines.read(min(left, _CHUNK))
            if not chunk:
                raise Trouble("Redis hung up before the snapshot's end.")
            sink.write(chunk)
            left -= len(chunk)

    def _copy_to_mark(self, sink: BinaryIO, mark: bytes) -> None:
        """Up to `mark`, which a server sends that does not know the length when it begins."""
        if len(mark) != _MARK_LENGTH:
            raise Trouble("Redis announced no snapshot.")
        held = b""
        while True:
            # As soon as something is there: after the mark a server may go on, or wait for us to hang up.
            chunk = self._lines.read1(_CHUNK)
            held += chunk
            at = held.find(mark)
            if at >= 0:
                sink.write(held[:at])
                return
            if not chunk:
                raise Trouble("Redis hung up before the snapshot's end.")
            sink.write(held[:-_MARK_LENGTH])
            held = held[-_MARK_LENGTH:]

    def _send(self, *words: str) -> None:
        encoded = [word.encode() for word in words]
        parts = [b"*%d\r\n" % len(encoded), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)]
        self._socket.sendall(b"".join(parts))

    def _reply(self) -> str:
        line = b"\n"
        while line == b"\n":  # a sign of life
            line = self._lines.readline()
        text = line.decode("utf-8", "replace").strip()
        if not text:
            raise Trouble("Redis hung up.")
        if text.startswith("-"):
            raise Trouble(f"Redis refused: {text[1:]}")
        return text[1:]


def _socket_to(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(_TIMEOUT_S)
        try:
            connected.connect(unquote(parts.path))
        except OSError:
            connected.close()
            raise
        return connected
    host = parts.hostname or "localhost"
    connected = socket.create_connection((host, parts.port or 6379), _TIMEOUT_S)
    if parts.scheme == "redis":
        return connected
    authority = parse_qs(parts.query).get("ssl_ca_certs", [None])[0]
    return ssl.create_default_context(cafile=authority).wrap_socket(connected, server_hostname=host)


def main(command: str) -> int:
    """Do it; the exit status. What is wrong is told on the standard error stream."""
    try:
        connection = Connection(os.environ.get("MEMORY_REDIS_URL", ""))
        try:
            if command != "ping":  # that somebody listens is all to know then
                connection.log_in()
                connection.copy_snapshot(sys.stdout.buffer)
                sys.stdout.buffer.flush()
        finally:
            connection.close()
    except NobodyListens as exc:
        sys.stderr.write(f"{exc}\n")
        return 3
    except Trouble as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    except (OSError, ValueError) as exc:
        # The text of a wrong URL could hold its password.
        sys.stderr.write(f"Redis could not be asked: {type(exc).__name__}.\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))

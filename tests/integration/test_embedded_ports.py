"""Ports of the local stack, against real sockets."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from service.embedded import ports
from service.embedded.errors import LocalStackError

from tests.support import free_port


def test_a_reserved_port_is_nobody_elses_and_refuses_callers() -> None:
    port = free_port()
    assert ports.is_free("127.0.0.1", port)
    reservation = ports.Reservation("127.0.0.1", port)
    assert not ports.is_free("127.0.0.1", port)
    with pytest.raises(ports.PortTaken, match=f"Port {port} on 127.0.0.1"):
        ports.Reservation("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    reservation.release()
    reservation.release()
    assert reservation.fds == ()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ports.PortTaken, match=f"Port {port}"):
        reservation.hold()
    reservation.hold()
    assert len(reservation.fds) == 1
    assert not ports.is_free("127.0.0.1", port)
    reservation.release()
    assert ports.is_free("127.0.0.1", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_wanted_port_that_is_taken_is_an_error_and_a_default_one_moves_on(host: str) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", free_port()))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LocalStackError, match=f"Port {port} on {host} is already in use"):
            ports.reserve(host, port, is_explicit=True)
        moved = ports.reserve(host, port, is_explicit=False)
        assert port < moved.port <= port + 100
        moved.release()


def test_a_remembered_port_is_taken_again_only_while_it_is_free() -> None:
    port = free_port()
    assert ports.internal_port(port, set()) == port
    assert ports.internal_port(port, {port}) != port
    with socket.create_server(("127.0.0.1", port)):
        assert ports.internal_port(port, set()) != port


def test_a_port_of_another_process_is_told_apart_from_ones_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"]) as other:
            assert ports.listens(os.getpid(), port)
            assert not ports.listens(other.pid, port)
            other.send_signal(signal.SIGKILL)


def test_a_process_that_has_ended_listens_to_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ended = subprocess.Popen([sys.executable, "-c", ""])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert not ports.listens(ended.pid, port)  # its exit code was not asked for
        ended.wait()
        assert not ports.listens(ended.pid, port)

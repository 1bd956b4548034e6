"""The data directory: who may use it, the lock that one `up` holds on it, its secrets and ports."""

import contextlib
import errno
import fcntl
import json
import os
import pwd
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from service.embedded.errors import LocalStackError

_LOCK = "up.lock"
_SECRETS = "secrets.json"
_PORTS = "ports.json"
# A reader of `connection.json` holds the lock for microseconds; `up` outwaits that.
_LOCK_PATIENCE_S = 1.0


def write_private(path: Path, text: str) -> None:
    """Replace a file (mode 0600) in one step that survives a power cut: old or new, never half of it."""
    scratch = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a supervisor that is alive holds the data directory."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class DataDir:
    """An exclusively held data directory: a context manager around the life of the stack.

    Entering makes the folder (mode 0700) if need be and takes the lock; a kill -9 of the holder frees it.

    Raises:
        LocalStackError: on entering, if the folder is somebody else's, in use by another `up`,
            not writable, or full of other things.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root.expanduser()))  # noqa: PTH100 - must not follow symbolic links
        self.logs = self.root / "logs"
        self.sockets = self.root / "run"
        self._lock: int | None = None

    def __enter__(self) -> Self:
        with self._explained():
            self._make_root()
            self._take_lock()
            for folder in (self.logs, self.sockets):
                folder.mkdir(mode=0o700, exist_ok=True)
            # A folder of secrets and memories inside somebody's repository must not be committed.
            ignore = self.root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n", encoding="ascii")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise LocalStackError(
                f"The data directory {self.root} cannot be used ({exc.strerror or 'input/output error'}); "
                "choose another with --data-dir or MEMORY_DATA_DIR."
            ) from exc

    def _make_root(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self.root.stat().st_uid
        if owner != os.geteuid():
            raise LocalStackError(
                f"The data directory {self.root} belongs to {_user_name(owner)}, but you are "
                f"{_user_name(os.geteuid())}; run `dify-memory up` as its owner or choose another --data-dir."
            )
        if not (self.root / _LOCK).exists() and any(self.root.iterdir()):
            raise LocalStackError(
                f"{self.root} holds other files and was not made by `dify-memory up`; "
                "choose a new or empty folder as --data-dir."
            )
        self.root.chmod(0o700)

    def _take_lock(self) -> None:
        descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                if time.monotonic() > deadline:
                    holder = os.pread(descriptor, 32, 0).decode("ascii", errors="replace").strip()
                    os.close(descriptor)
                    raise LocalStackError(
                        f"Another `dify-memory up` (process {holder or 'unknown'}) already uses {self.root}; "
                        "stop it first, or choose another --data-dir."
                    ) from exc
                time.sleep(0.02)
            except OSError as exc:
                os.close(descriptor)
                if exc.errno == errno.ENOLCK:
                    raise LocalStackError(
                        f"The file system of {self.root} knows no locks; put --data-dir on a local disk."
                    ) from exc
                raise
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        self._lock = descriptor

    def secret(self, name: str, *, prefix: str = "") -> str:
        """A generated secret of 256 bits, the same one at every start; kept in a file of mode 0600."""
        known = self._read(_SECRETS)
        value = known.get(name)
        if not isinstance(value, str):
            value = known[name] = prefix + secrets.token_urlsafe(32)
            with self._explained():
                write_private(self.root / _SECRETS, json.dumps(known, indent=2) + "\n")
        return value

    def remembered_ports(self) -> dict[str, int]:
        """Internal ports of the last start by child name."""
        return {name: port for name, port in self._read(_PORTS).items() if isinstance(port, int)}

    def remember_ports(self, ports: dict[str, int]) -> None:
        """Keep the internal ports for the next start."""
        with self._explained():
            write_private(self.root / _PORTS, json.dumps(ports, indent=2, sort_keys=True) + "\n")

    def _read(self, name: str) -> dict[str, object]:
        path = self.root / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            raise LocalStackError(
                f"{path} cannot be read; restore it, or remove it to have it made anew."
            ) from exc
        if not isinstance(content, dict):
            raise LocalStackError(f"{path} cannot be read; restore it, or remove it to have it made anew.")
        return content


def _user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"

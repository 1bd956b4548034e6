"""`connection.json`: how demo, doctor, tests and scripts find a running local stack."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from service.embedded.data_dir import is_locked, write_private
from service.embedded.errors import LocalStackError

_FILE = "connection.json"


@dataclass(frozen=True)
class Connection:
    """Where the running stack is. `pids` holds the children's process ids by name, as last started.

    The URLs of Redis include what is needed to log in; `token_keys` sign user tokens and personal links.
    The representation shows neither keys nor URLs.
    """

    url: str
    api_key: str = field(repr=False)
    token_keys: str = field(repr=False)
    redis_url: str = field(repr=False)
    cache_redis_url: str = field(repr=False)
    hindsight_url: str = field(repr=False)
    pids: dict[str, int]


def read_connection(data_dir: Path) -> Connection | None:
    """The stack that runs on this data directory now; None if there is none.

    A file that a killed supervisor left behind counts as none: only a live one holds the lock.

    Raises:
        LocalStackError: the folder is another user's, or the file is not ours.
    """
    path = data_dir.expanduser() / _FILE
    try:
        if not is_locked(path.parent):
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        return Connection(
            url=str(content["url"]),
            api_key=str(content["api_key"]),
            token_keys=str(content["token_keys"]),
            redis_url=str(content["redis_url"]),
            cache_redis_url=str(content["cache_redis_url"]),
            hindsight_url=str(content["hindsight_url"]),
            pids={str(name): int(pid) for name, pid in content["pids"].items()},
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as exc:
        raise LocalStackError(f"{path} belongs to another user; run this command as its owner.") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise LocalStackError(f"{path} is not a file of this version; start the stack again.") from exc


def write_connection(data_dir: Path, connection: Connection) -> None:
    """Publish the stack in one step (mode 0600)."""
    write_private(data_dir / _FILE, json.dumps(asdict(connection), indent=2) + "\n")


def remove_connection(data_dir: Path) -> None:
    """Withdraw the stack; nothing to withdraw is fine."""
    (data_dir / _FILE).unlink(missing_ok=True)

"""Whether a server of ours can listen on a unix socket, which no other local user can reach."""

import os
import re
from pathlib import Path

# sun_path holds 108 bytes with its final NUL (unix(7)).
_LONGEST_PATH = 107
_PLAIN = re.compile(r"[A-Za-z0-9/._@+-]+")


def fits(path: Path) -> bool:
    """Whether a socket can be at `path` and stand in a URL as it is, for clients that do not unquote it."""
    return len(os.fsencode(path)) <= _LONGEST_PATH and _PLAIN.fullmatch(str(path)) is not None

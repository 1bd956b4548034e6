"""What the supervisor says: the same plain lines on the terminal and in `logs/up.log`."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path


class Console:
    """Says lines to a writer (the terminal) and appends them, dated, to a file.

    Neither a closed terminal nor a full disk may end the stack, so both are survived in silence.
    """

    def __init__(self, write: Callable[[str], object], log_file: Path) -> None:
        self._write = write
        self._log_file = log_file
        self._terminal_is_open = True

    def say(self, line: str = "") -> None:
        """One line on the terminal and in the log."""
        self.show(line)
        self.note(line)

    def show(self, line: str = "") -> None:
        """One line on the terminal only: for what must not be kept, such as the API key."""
        if not self._terminal_is_open:
            return
        try:
            self._write(line)
        except (OSError, ValueError):  # the terminal is gone (EIO, EPIPE), or the stream is closed
            self._terminal_is_open = False

    def note(self, line: str) -> None:
        """One line in the log only."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with self._log_file.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{stamp} {line}\n")
        except OSError as exc:
            logging.getLogger(__name__).debug("up_log_unwritable", extra={"errno": exc.errno})

"""What can go wrong when the local stack starts, as sentences for the person at the terminal."""


class LocalStackError(Exception):
    """The local stack cannot start or go on; the text says why and what to do, and holds no secret."""


class ChildFailed(LocalStackError):
    """A child did not get ready on the first start."""

    def __init__(self, name: str, cause: str, log_tail: str) -> None:
        super().__init__(f"{name} could not be started: {cause}.")
        self.name = name
        self.log_tail = log_tail

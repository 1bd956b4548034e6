"""What is wrong with a policy file; apart from its reader, so that whoever reports it loads nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong with a file; `line` counts from 1."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


class PolicyFileError(ValueError):
    """A file that cannot be used, with all its mistakes."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes

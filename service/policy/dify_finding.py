"""What the template checker reports."""

from dataclasses import dataclass
from typing import Literal

from service.policy.dify_flow import FlowNode


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    code: stable, for programs. severity: `error` breaks, leaks or mixes up users; `warning` works here
    and may not elsewhere. node: its title, or empty for the whole file. message: what happens, what to do.
    """

    code: str
    severity: Literal["error", "warning"]
    node: str
    message: str

    def __str__(self) -> str:
        """As one line."""
        place = f"“{self.node}”: " if self.node else ""
        return f"{self.severity}: {place}{self.message} [{self.code}]"


def error(code: str, message: str, node: FlowNode | None = None) -> Finding:
    """A finding that has to be mended."""
    return Finding(code, "error", node.title if node else "", message)


def warning(code: str, message: str, node: FlowNode | None = None) -> Finding:
    """A finding that may be lived with."""
    return Finding(code, "warning", node.title if node else "", message)

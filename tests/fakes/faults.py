"""Faults a stand-in can be told to show: which, for which operation, how often."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

FaultKind = Literal[
    "hang",  # accepts the request, does nothing, answers nothing
    "slow",  # waits `seconds`, then does the work and answers
    "trickle",  # does the work, then answers one byte every `seconds`
    "status",  # answers `status` (and `retry_after`) without doing the work
    "garbage",  # answers 200 with a body that is not JSON
    "wrong_shape",  # answers 200 with JSON of another shape
    "close",  # drops the connection without doing the work
    "cut",  # does the work, then drops the connection in the middle of the reply
    "commit_then_close",  # does the work, then drops the connection
    "commit_then_hang",  # does the work, answers nothing
]
FAULT_KINDS: tuple[str, ...] = get_args(FaultKind)


@dataclass
class Fault:
    """One planned misbehaviour. `times` None means until it is healed."""

    kind: FaultKind
    times: int | None = None
    seconds: float = 0.0
    status: int = 503
    retry_after: str | None = None
    body: Any = field(default_factory=lambda: {"unexpected": ["shape"]})


class Faults:
    """The faults planned for each operation; the operation `*` stands for all."""

    def __init__(self) -> None:
        self._planned: dict[str, list[Fault]] = {}
        self.healed = asyncio.Event()

    def plan(self, operation: str, fault: Fault) -> None:
        """Queue a fault: those planned first show first."""
        if fault.kind not in FAULT_KINDS:
            raise ValueError(f"There is no fault {fault.kind!r}.")
        self._planned.setdefault(operation, []).append(fault)

    def heal(self, operation: str | None = None) -> None:
        """Forget the faults of one operation, or of all; requests that hang are let go."""
        if operation is None:
            self._planned.clear()
        else:
            self._planned.pop(operation, None)
        self.healed.set()
        self.healed = asyncio.Event()

    def take(self, operation: str) -> Fault | None:
        """The fault for this request, used up by it."""
        for name in (operation, "*"):
            planned = self._planned.get(name)
            if not planned:
                continue
            fault = planned[0]
            if fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    planned.pop(0)
            return fault
        return None

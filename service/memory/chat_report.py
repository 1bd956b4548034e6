"""What memory did for one chat, and how that is told: as headers, at the end of a stream, or as an object."""

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["on", "off", "no_user", "check", "excluded", "degraded"]


@dataclass(slots=True)
class Report:
    """What memory did for one chat; `stored` is empty while nothing was tried."""

    status: Status
    mode: str = "recall"
    count: int = 0
    query: str = ""
    reason: str = ""
    ids: list[str] = field(default_factory=list)
    stored: str = ""
    job_id: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """The report without anything of the chat."""
        said = {
            "X-Memory-Status": self.status,
            "X-Memory-Mode": self.mode,
            "X-Memory-Count": str(self.count),
            "X-Memory-Reason": self.reason.partition(":")[0],
            "X-Memory-Stored": self.stored,
            "X-Memory-Job-Id": self.job_id,
        }
        return {name: value for name, value in said.items() if value}

    @property
    def of_turn(self) -> dict[str, str]:
        """What became of the turn, for the end of a stream, whose headers went out before it was over."""
        said = {"stored": self.stored, "job_id": self.job_id}
        return {name: value for name, value in said.items() if value}

    def as_object(self) -> dict[str, object]:
        """All of it, for a client that asked."""
        return {
            "status": self.status,
            "mode": self.mode,
            "count": self.count,
            "query": self.query,
            "degraded": self.status == "degraded",
            "reason": self.reason,
            "ids": self.ids,
            "stored": self.stored,
            "job_id": self.job_id,
        }

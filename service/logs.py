"""JSON logs on standard error: a static event name and facts, never content, queries, user ids or keys."""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

request_id: ContextVar[str] = ContextVar("request_id", default="")
bank_id: ContextVar[str] = ContextVar("bank_id", default="")
job_id: ContextVar[str] = ContextVar("job_id", default="")
# The span that is under way, as W3C Trace Context writes it: 00-trace-span-flags. Empty: nothing is traced.
traceparent: ContextVar[str] = ContextVar("traceparent", default="")

_CONTEXT = {"request_id": request_id, "bank_id": bank_id, "job_id": job_id}
# Attributes every LogRecord has; whatever else is in its dict came through `extra`.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# Nor are these: once it is loaded, litellm marks the records of every logger (`litellm_redacted`).
_FOREIGN = ("_", "litellm")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (ISO 8601, UTC), level, logger, event, context, facts."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON; of an exception only its class and place are kept."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update({name: var.get() for name, var in _CONTEXT.items() if var.get()})
        if span := traceparent.get():
            line["trace_id"] = span.split("-", 2)[1]
        line.update({k: v for k, v in vars(record).items() if k not in _PLAIN and not k.startswith(_FOREIGN)})
        if record.exc_info and record.exc_info[0] is not None:
            # An exception's text may quote its input (a driver quotes the failing value), its place cannot.
            line["exception"] = record.exc_info[0].__name__
            frame = record.exc_info[2]
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            if frame is not None:
                line["at"] = f"{frame.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.tb_lineno}"
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str) -> None:
    """Send everything through the JSON formatter to standard error; call once, at a process's root."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "arq"):
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = True
    # Access lines hold query strings, which may hold a key; our own line per request says more.
    logging.getLogger("uvicorn.access").disabled = True
    # These print request lines and arguments of the libraries below us at INFO.
    for name in ("httpx", "httpcore", "aiohttp", "arq.worker"):
        logging.getLogger(name).setLevel(logging.WARNING)

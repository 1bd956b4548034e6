"""The embeddings server of the local stack, in a container of its own (see `deploy/compose.yaml`).

Environment: `EMBEDDINGS_PORT` and `EMBEDDINGS_KEY`, the bearer token that callers must send.
"""

import os

import uvicorn
from service.embedded.embeddings_server import make_app


def main() -> None:
    """Serve on all addresses of the container until SIGTERM."""
    uvicorn.run(
        make_app(os.environ["EMBEDDINGS_KEY"]),
        host="0.0.0.0",
        port=int(os.environ["EMBEDDINGS_PORT"]),
        log_level="warning",
        access_log=False,
        # Longer than Hindsight's client keeps a connection, so that the client closes first.
        timeout_keep_alive=300,
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    main()

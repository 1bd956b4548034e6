"""`health_api.py live|ready|ready?only=serving`: does the API in this container answer? Exit status 0: yes.

Standard library only, so that a check every few seconds costs next to nothing.
"""

import os
import sys
import urllib.error
import urllib.request

_TIMEOUT_S = 4


def is_well(probe: str) -> bool:
    """Whether `/health/<probe>` answers 200; a proxy of the environment is not asked."""
    port = os.environ.get("MEMORY_PORT") or "8000"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health/{probe}", timeout=_TIMEOUT_S) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if is_well(sys.argv[1]) else 1)

"""What the API's process must not load."""

import subprocess
import sys

import pytest

_LOADED = "import sys, service.app; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


@pytest.mark.parametrize("name", ["litellm", "openai", "anthropic"])
def test_the_request_path_loads_no_language_model_library(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, check=True, text=True)
    loaded = done.stdout.split()
    assert "fastapi" in loaded
    assert name not in loaded

"""litellm stays out of a process that serves no model, and quiet in one that does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from service.adapters.gateway import Gateway
from service.adapters.gateway_errors import ModelMissing
from service.memory.chat_setup import gateway_of
from service.policy.policy_mistakes import PolicyFileError
from service.settings import Settings

# The whole life of an API that nobody calls; Redis and Hindsight are not there, which it survives.
_LIVES = """
import asyncio, sys
from service.app import create_app
from service.settings import Settings

async def main():
    settings = Settings.model_validate({
        "redis_url": "redis://127.0.0.1:1/0", "hindsight_url": "http://127.0.0.1:1", **CHANGES})
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        pass

asyncio.run(main())
import os
print("litellm" in sys.modules, os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP", ""))
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "False"),
        ({"gateway_model": "openai/x", "gateway_base_url": "http://127.0.0.1:1/v1"}, "False"),
        ({"gateway_model": "openai/x", "gateway_api_key": "k"}, "True True"),
    ],
)
def test_litellm_is_loaded_for_a_model_alone_and_fetches_no_price_map(
    changes: dict[str, str], expected: str
) -> None:
    # Importing hindsight-litellm fetches litellm's price map from the network.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LITELLM_", "MEMORY_"))}
    code = _LIVES.replace("CHANGES", repr(changes))
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


def test_a_name_stands_for_the_first_model_unless_one_is_called_so() -> None:
    gateway = Gateway(("a", "b"), (), {}, timeout_s=1)
    assert gateway.names == ("memory", "a", "b")
    assert [gateway.model_of(name) for name in ("memory", "a", "b")] == ["a", "a", "b"]
    own = Gateway(("a", "memory"), (), {}, timeout_s=1)
    assert own.model_of("memory") == "memory"
    assert own.names == ("memory", "a")
    for name in ("c", "", None, 5, ["a"]):
        with pytest.raises(ModelMissing):
            gateway.model_of(name)


def test_settings_name_one_model_or_a_file(folder: Path) -> None:
    assert gateway_of(Settings.model_validate({})) is None
    found = gateway_of(Settings.model_validate({"gateway_model": "openai/x"}))
    assert found is not None
    assert found[0].names == ("memory", "openai/x")
    with pytest.raises(PolicyFileError):
        gateway_of(Settings.model_validate({"gateway_models_file": folder / "none.yaml"}))

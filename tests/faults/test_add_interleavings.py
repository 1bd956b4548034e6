"""The state machine of the turns log (tests/integration/test_turns_machine.py), at length and at random."""

import pytest

from tests.integration.test_turns_machine import run_machine
from tests.support import RedisServer


@pytest.mark.timeout(900)
def test_many_random_histories_keep_every_turn(redis_server: RedisServer) -> None:
    run_machine(redis_server.url, examples=300, steps=60, is_random=True)

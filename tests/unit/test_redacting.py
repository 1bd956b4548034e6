"""Long texts are redacted beside the event loop, short ones without the detour."""

from threading import get_ident

import pytest
from service.memory.redacting import off_loop

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("chars", "is_here"), [(0, True), (2_000, True), (2_001, False)])
async def test_where_the_work_is_done(chars: int, is_here: bool) -> None:
    assert (await off_loop(chars, get_ident) == get_ident()) is is_here


async def test_what_goes_wrong_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        await off_loop(2_001, lambda: 1 // 0)

"""Kills, freezes and restarts, seeded. One API and one worker are spared, so that growth has time to show."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tests.support import ServerProcess

_FREEZES_S = (0.3, 3.0, 12.0)


@dataclass(frozen=True)
class Victim:
    """A process and what may happen to it."""

    name: str
    process: ServerProcess
    blows: Sequence[str]


@dataclass
class Havoc:
    """Hurts each victim again and again, every `pace_s` seconds on average, and starts it again."""

    victims: Sequence[Victim]
    rng: random.Random
    pace_s: float
    blows: Counter[str] = field(default_factory=Counter)
    breaches: list[tuple[str, str]] = field(default_factory=list)
    _lives: Counter[str] = field(default_factory=Counter)
    _down: set[str] = field(default_factory=set)

    def life(self, name: str) -> int | None:
        """Which life of this process it is, None from the moment a blow falls until it is back.

        The same number before and after something: the process lived through all of it, unhurt.
        """
        return None if name in self._down else self._lives[name]

    async def run(self, is_over: asyncio.Event) -> None:
        """Go on until it is over; then everything runs."""
        async with asyncio.TaskGroup() as tasks:
            for victim in self.victims:
                tasks.create_task(self._hurt(victim, is_over))

    async def _hurt(self, victim: Victim, is_over: asyncio.Event) -> None:
        process = victim.process
        while True:
            await pause(self.rng.uniform(0.5, 1.5) * self.pace_s, is_over)
            if is_over.is_set():
                break
            self._down.add(victim.name)
            if process.is_running:
                blow = self.rng.choice(victim.blows)
                self.blows[f"{victim.name}: {blow}"] += 1
                if blow == "kill":
                    await process.kill()
                elif blow == "stop":
                    await process.stop(timeout_s=60)
                else:
                    process.pause()
                    # Longer than a claim, sometimes: a worker then comes back to banks that were given away.
                    await pause(self.rng.choice(_FREEZES_S), asyncio.Event())
                    process.resume()
            else:
                self.breaches.append(("died by itself", f"{victim.name} ended with {process.returncode}"))
            await self._revive(process)
            self._lives[victim.name] += 1
            self._down.discard(victim.name)
        await self._revive(process)

    async def _revive(self, process: ServerProcess) -> None:
        while not process.is_running:
            # What it needs may be dead at this moment.
            with suppress(AssertionError):
                await process.start()


async def pause(seconds: float, is_over: asyncio.Event) -> None:
    """Let time pass, or less if it is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await is_over.wait()

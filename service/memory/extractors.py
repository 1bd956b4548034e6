"""The extractors of all tenants: one language model and one account, and each tenant's own policy."""

from contextlib import AsyncExitStack
from dataclasses import replace

from service.adapters.hindsight import HindsightAdapter
from service.adapters.llm import LlmAdapter
from service.adapters.spending import Spending
from service.adapters.turns import TurnsLog
from service.memory.extract import ExtractOptions, Extractor
from service.memory.policies import Policies
from service.metrics import Metrics
from service.settings import Settings


class Extractors:
    """Hands out extractors; `options` are what is the same for all tenants. One per worker."""

    def __init__(
        self,
        log: TurnsLog,
        hindsight: HindsightAdapter,
        metrics: Metrics,
        options: ExtractOptions,
        policies: Policies,
        llm: LlmAdapter | None = None,
        spending: Spending | None = None,
    ) -> None:
        self._turns = log
        self._hindsight = hindsight
        self._metrics = metrics
        self._options = options
        self._policies = policies
        self._llm = llm
        self._spending = spending

    def of(self, tenant: str | None) -> Extractor:
        """The extractor for turns of one tenant; None: whose they are is not known (`Policies.owner`'s)."""
        name = self._policies.owner if tenant is None else tenant
        policy = self._policies.of(name)
        options = replace(
            self._options,
            policy=policy.keep,
            tenant=name,
            daily_usd=policy.llm_daily_usd,
            daily_tokens=policy.llm_daily_tokens,
        )
        return Extractor(self._turns, self._hindsight, self._metrics, options, self._llm, self._spending)


async def open_extractors(
    stack: AsyncExitStack,
    settings: Settings,
    policies: Policies,
    log: TurnsLog,
    hindsight: HindsightAdapter,
    metrics: Metrics,
) -> Extractors:
    """The extractors that the settings ask for; what they need besides is opened in `stack`."""
    options = ExtractOptions.from_settings(settings)
    if options.mode != "litellm":
        return Extractors(log, hindsight, metrics, options, policies)
    llm = await stack.enter_async_context(LlmAdapter.from_settings(settings))
    spending = await stack.enter_async_context(Spending.from_settings(settings))
    return Extractors(log, hindsight, metrics, options, policies, llm, spending)

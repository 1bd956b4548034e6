"""What the tests of retention share: documents of any age, and nights."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview
from service.adapters.retention_plan import RetentionPlan
from service.memory.policies import Policies
from service.memory.retention import Expired, Retention
from service.policy.tenant_policy import PolicyFile, TenantPolicy
from service.scope import BankId, bank_of, tenant_mark

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Workshop

ANNE = bank_of("default", "anne")
BERT = bank_of("default", "bert")
TASK, TASTE = "memory_type:task_state", "memory_type:preference"
# Noon, so that the day's quiet hour has passed, whatever the time now.
TODAY = datetime.now(UTC).replace(hour=12)
TOMORROW = TODAY + timedelta(days=1)


def bank_with(stand_in: HindsightStandIn, tenant: str, user: str = "anne") -> BankId:
    """The bank of a tenant's user, which tells whose it is."""
    bank = bank_of(tenant, user)
    stand_in.store.ensure_bank(bank).name = tenant_mark(tenant)
    return bank


def put(
    stand_in: HindsightStandIn,
    bank: BankId,
    name: str,
    days_ago: float,
    text: str = "",
    tags: Sequence[str] = (),
) -> None:
    """A document with one memory, said that long ago and stored now."""
    said_at = (TODAY - timedelta(days=days_ago)).isoformat()
    item = {
        "content": text or f"It is {name}.",
        "document_id": name,
        "timestamp": said_at,
        "tags": list(tags),
    }
    stand_in.store.retain(bank, [item])


def policies_of(days: int) -> Policies:
    """All tenants keep what was said for so many days."""
    return Policies(PolicyFile(TenantPolicy(retention_days=days), {}))


def keeper(workshop: Workshop, policies: Policies, run_s: float = 40) -> Retention:
    """Retention on a workshop's parts."""
    return Retention(
        HindsightReview(workshop.hindsight),
        HindsightEraser(workshop.hindsight),
        workshop.log,
        workshop.cache,
        policies=policies,
        run_s=run_s,
    )


async def night(workshop: Workshop, plan: RetentionPlan, policies: Policies) -> Expired:
    """The first run, which only takes note of the day, and a run on the next day."""
    await keeper(workshop, policies).work(plan, TODAY)
    return await keeper(workshop, policies).work(plan, TOMORROW)

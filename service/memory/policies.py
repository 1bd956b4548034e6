"""What each tenant keeps: the policy file's word, else the settings'.

Read once, when a process starts: whoever changes the file restarts the API and the worker.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from service.policy.bank_config import Mode, bank_config
from service.policy.kinds import KeepPolicy, kinds_named
from service.policy.policy_mistakes import Mistake, PolicyFileError
from service.policy.tenant_policy import PolicyFile, TenantPolicy, read_policy_file
from service.scope import tenant_mark
from service.settings import Settings


class Policies:
    """The policies of all tenants; those without one of their own have the default.

    `owner` is `MEMORY_TENANT`, whose a bank is that does not tell. Known by their marks are the owner, the
    tenants that the file names, and `others`: a bank with any other mark may be another installation's.
    """

    def __init__(
        self, file: PolicyFile | None = None, owner: str = "default", others: Iterable[str] = ()
    ) -> None:
        self.file = file or PolicyFile(TenantPolicy(), {})
        self.owner = owner
        self._tenants = {tenant_mark(tenant): tenant for tenant in (*self.file.tenants, *others, owner)}

    @classmethod
    def from_settings(cls, settings: Settings) -> "Policies":
        """Those of `MEMORY_POLICY_FILE`. Raises `PolicyFileError`, also for a file that cannot be read."""
        base = policy_in(settings)
        if settings.policy_file is None:
            return cls(PolicyFile(base, {}), settings.tenant)
        try:
            text = settings.policy_file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise PolicyFileError((Mistake(1, f"the file cannot be read ({type(exc).__name__})"),)) from exc
        return cls(read_policy_file(text, base), settings.tenant)

    def of(self, tenant: str) -> TenantPolicy:
        """What one tenant keeps."""
        return self.file.of(tenant)

    def knowing(self, others: Iterable[str]) -> "Policies":
        """The same with other tenants known besides, such as those that have keys."""
        return Policies(self.file, self.owner, (*self._tenants.values(), *others))

    def of_mark(self, mark: str) -> TenantPolicy | None:
        """The policy for a bank with this mark (see `scope.tenant_mark`; empty: it has none).

        None: it is the mark of a tenant that is not known.
        """
        tenant = self.tenant_of(mark)
        return None if tenant is None else self.of(tenant)

    def tenant_of(self, mark: str) -> str | None:
        """The tenant of a bank with this mark; None for one that nothing here names."""
        return self._tenants.get(mark) if mark else self.owner

    def bank_configs(self, mode: Mode) -> Mapping[str, Mapping[str, Any]]:
        """How banks have to be configured, for each tenant with a policy of its own."""
        return {tenant: bank_config(mode, policy.keep) for tenant, policy in self.file.tenants.items()}

    @property
    def keep_for_ever(self) -> bool:
        """Whether nothing of any tenant ever gets too old."""
        return all(policy.keeps_for_ever for policy in (self.file.default, *self.file.tenants.values()))


def policy_in(settings: Settings) -> TenantPolicy:
    """What the settings say, for all that a policy file leaves out."""
    return TenantPolicy(
        KeepPolicy(kinds_named(settings.kind_names), settings.importance_threshold),
        retention_days=settings.retention_days,
        llm_daily_usd=settings.llm_daily_usd,
        llm_daily_tokens=settings.llm_daily_tokens,
    )

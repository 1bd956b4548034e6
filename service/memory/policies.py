"""The policy this installation's tenant is served by: the policy file's, else the settings'."""

from service.policy.kinds import KeepPolicy, kinds_named
from service.policy.tenant_policy import Mistake, PolicyFileError, TenantPolicy, read_policy_file
from service.settings import Settings


def policy_of(settings: Settings) -> TenantPolicy:
    """What `settings.tenant` keeps. Raises `PolicyFileError`, also for a file that cannot be read."""
    base = KeepPolicy(kinds_named(settings.kind_names), settings.importance_threshold)
    if settings.policy_file is None:
        return TenantPolicy(base)
    try:
        text = settings.policy_file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise PolicyFileError((Mistake(1, f"the file cannot be read ({type(exc).__name__})"),)) from exc
    return read_policy_file(text, base).of(settings.tenant)

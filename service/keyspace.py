"""All Redis keys. Parts are fixed in number and are ids or digests made by us, never raw input.

The keys of the cache carry the bank as a hash tag, so that a cluster keeps what is read together
in one place.

| key | type | holds | TTL |
|---|---|---|---|
| `mem:due` | zset | bank → Unix ms when it has to be looked at next | accepted work |
| `mem:claims` | hash | bank → token of the worker that has it | accepted work |
| `mem:claim-number` | counter | makes claim tokens and turn numbers unique and growing | none (8 bytes) |
| `mem:turns:B` | hash | document id → one accepted turn of bank B | accepted work |
| `mem:conversations:B` | hash | conversation → first, last, count, ids of waiting turns | accepted work |
| `mem:batch:B` | hash | the frozen batch of bank B | accepted work |
| `mem:waiting` | counter | how many turns all `mem:turns:B` hold together | accepted work |
| `mem:oldest-batch` | string | when the oldest batch was frozen (Unix ms), at the last sweep | yes |
| `mem:oldest-turn` | string | when the oldest turn in no batch came (Unix ms), at the last sweep | yes |
| `mem:resting` | zset | bank → until when (Unix ms) the language model is not to be asked for it | yes |
| `mem:not-asked:C` | string | since when (Unix ms) it is not asked for reason C | yes |
| `mem:workers` | zset | worker → when it last gave a sign of life (Unix ms) | yes |
| `mem:last-stored` | string | when a turn was last stored (Unix ms) | yes |
| `mem:dead` | hash | document id → bank, reason and turn of what could not be stored | dead letters |
| `mem:dead-of:B` | hash | document id of each dead letter of bank B → its tenant | dead letters |
| `mem:keys` | hash | API keys that were made: digests and grants, when they end | until they are dropped |
| `mem:audit` | stream | who did what to whose memories | yes |
| `mem:rate:D` | string | requests of one key or user in one minute | yes |
| `mem:hook:D` | string | this event of Hindsight's was seen to | yes |
| `mem:spent:D` | hash | what a tenant's language model has cost on one day | yes |
| `mem:usage:D` | hash | what was counted in one hour or on one day, by tenant | yes |
| `mem:admin-ended:D` | string | this visit of an operator's was ended | yes |
| `mem:me-ended:B` | string | personal links of bank B made up to this Unix ms are good no more | yes |
| `mem:data-version` | string | which version of this table the data follows | accepted work |
| `mem:data-migration` | string | a process brings the data up to date | yes |
| `mem:job:J` | hash | state of one job | yes |
| `mem:seen:D` | string | turn digest → its job, and the number of its first turn | yes |
| `mem:forgotten:B` | hash | all, conversation or document → number; what came before is not known | yes |
| `mem:forgetting:B` | hash | a forget: what it took, operations it looks for; those used up of late | yes |
| `mem:meant:B` | hash | forget or correction of one memory → ids of all it has to change | yes |
| `mem:bank-made:B` | string | bank B is known to exist in Hindsight | yes |
| `mem:write:{B}` | string | write epoch of bank B: changes when a turn is accepted or stored | yes |
| `mem:purge:{B}` | string | purge epoch of bank B: changes when something is forgotten | yes |
| `mem:recall:{B}:Q` | string | the answer to question Q, with the epochs it was computed under | yes |
| `mem:answers:{B}` | zset | the keys of the bank's cached answers | yes |
| `mem:lease:{B}:Q` | string | somebody is computing that answer | yes |
| `mem:retention` | hash | how far today's round of deleting what is too old has got | yes |
| `mem:retention-banks` | hash | bank → where to go on in it, and whose it is | yes |
| `mem:retention-lease` | string | a worker goes on with that round | yes |
| `mem:arq` | zset | arq's queue of ids; arq's own keys begin `arq:` and have TTLs | none |
"""

from service.scope import BankId, JobId

DUE = "mem:due"
CLAIMS = "mem:claims"
CLAIM_NUMBER = "mem:claim-number"
# Whatever takes a turn out of `mem:turns:B` takes as many off this counter in the same script (the sweep
# puts right what drifted); likewise what leaves `mem:dead` leaves `mem:dead-of:B`.
WAITING = "mem:waiting"
OLDEST_BATCH = "mem:oldest-batch"
OLDEST_TURN = "mem:oldest-turn"
# Banks whose turns wait as they were told to, until the score; the sweep does not call that stuck.
RESTING = "mem:resting"
WORKERS = "mem:workers"
LAST_STORED = "mem:last-stored"
DATA_VERSION = "mem:data-version"
DATA_MIGRATION = "mem:data-migration"
DEAD = "mem:dead"
KEYS = "mem:keys"
AUDIT = "mem:audit"
RETENTION = "mem:retention"
RETENTION_BANKS = "mem:retention-banks"
RETENTION_LEASE = "mem:retention-lease"
ARQ_QUEUE = "mem:arq"
ARQ_HEALTH = "mem:arq:health-check"


def turns(bank: BankId) -> str:
    """Hash of the turns that Hindsight does not know yet."""
    return f"mem:turns:{bank}"


def conversations(bank: BankId) -> str:
    """Hash of the conversations with turns that are not frozen yet."""
    return f"mem:conversations:{bank}"


def batch(bank: BankId) -> str:
    """Hash of the one frozen batch."""
    return f"mem:batch:{bank}"


def dead_of(bank: BankId) -> str:
    """Hash of the document ids of one bank's dead letters, so that they are found without a walk."""
    return f"mem:dead-of:{bank}"


def not_asked(code: str) -> str:
    """When the language model began not to be asked; `code` is an error's, such as `llm_budget_spent`."""
    return f"mem:not-asked:{code.replace('_', '-')}"


def rate(digest: str) -> str:
    """Count of requests; `digest` stands for the key or user and the minute."""
    return f"mem:rate:{digest}"


def hook(digest: str) -> str:
    """Mark that an event was seen to; `digest` stands for the event's id."""
    return f"mem:hook:{digest}"


def spent(digest: str) -> str:
    """Hash of a day's cost; `digest` stands for the tenant and the day."""
    return f"mem:spent:{digest}"


def usage(digest: str) -> str:
    """Hash of counts; `digest` stands for the hour or the day."""
    return f"mem:usage:{digest}"


def admin_ended(digest: str) -> str:
    """Mark that an operator has signed out; `digest` stands for the visit."""
    return f"mem:admin-ended:{digest}"


def me_ended(bank: BankId) -> str:
    """When the personal links of a bank were ended."""
    return f"mem:me-ended:{bank}"


def forgotten(bank: BankId) -> str:
    """Hash of what was forgotten and when, by the numbers that turns are given."""
    return f"mem:forgotten:{bank}"


def forgetting(bank: BankId) -> str:
    """Hash of what a forget that has not ended yet knows; of one that has, the operations, for an hour."""
    return f"mem:forgetting:{bank}"


def meant(bank: BankId) -> str:
    """Hash of what changes of single memories that have not ended yet are to change."""
    return f"mem:meant:{bank}"


def bank_made(bank: BankId) -> str:
    """Mark that Hindsight has this bank with our settings."""
    return f"mem:bank-made:{bank}"


def job(job_id: JobId) -> str:
    """Hash of one job's state."""
    return f"mem:job:{job_id}"


def seen(digest: str) -> str:
    """Job and number of a turn that was accepted before."""
    return f"mem:seen:{digest}"


def write_epoch(bank: BankId) -> str:
    """Cached answers of another write epoch are old, but may be served when Hindsight fails."""
    return f"mem:write:{{{bank}}}"


def purge_epoch(bank: BankId) -> str:
    """Cached answers of another purge epoch are never served."""
    return f"mem:purge:{{{bank}}}"


def recall(bank: BankId, question: str) -> str:
    """A cached answer."""
    return f"mem:recall:{{{bank}}}:{question}"


def answers(bank: BankId) -> str:
    """Set of the keys of a bank's cached answers, so that a forget can delete them without a walk."""
    return f"mem:answers:{{{bank}}}"


def lease(bank: BankId, question: str) -> str:
    """Mark of the process that computes an answer."""
    return f"mem:lease:{{{bank}}}:{question}"

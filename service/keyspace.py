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
| `mem:dead` | hash | document id → a turn that could not be stored, with the reason | dead letters |
| `mem:job:J` | hash | state of one job | yes |
| `mem:seen:D` | string | turn digest → its job | yes |
| `mem:bank-made:B` | string | bank B is known to exist in Hindsight | yes |
| `mem:write:{B}` | string | write epoch of bank B: changes when a turn is accepted or stored | yes |
| `mem:purge:{B}` | string | purge epoch of bank B: changes when something is forgotten | yes |
| `mem:recall:{B}:Q` | string | the answer to question Q, with the epochs it was computed under | yes |
| `mem:lease:{B}:Q` | string | somebody is computing that answer | yes |
| `mem:arq` | zset | arq's queue of ids; arq's own keys begin `arq:` and have TTLs | none |
"""

from service.scope import BankId, JobId

DUE = "mem:due"
CLAIMS = "mem:claims"
CLAIM_NUMBER = "mem:claim-number"
DEAD = "mem:dead"
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


def bank_made(bank: BankId) -> str:
    """Mark that Hindsight has this bank with our settings."""
    return f"mem:bank-made:{bank}"


def job(job_id: JobId) -> str:
    """Hash of one job's state."""
    return f"mem:job:{job_id}"


def seen(digest: str) -> str:
    """Job of a turn that was accepted before."""
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


def lease(bank: BankId, question: str) -> str:
    """Mark of the process that computes an answer."""
    return f"mem:lease:{{{bank}}}:{question}"

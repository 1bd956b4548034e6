"""The words of the page `/admin`, whatever the language."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final


@dataclass(frozen=True, slots=True)
class AdminTexts:
    """All words of the page in one language; names in braces are filled in."""

    lang: str
    title: str
    skip: str
    language: str
    sign_in: str
    sign_in_intro: str
    key: str
    key_hint: str
    sign_in_now: str
    sign_in_wrong: str
    sign_in_off: str
    sign_out: str
    signed_in: str
    as_of: str
    refresh: str
    places: str
    now: str
    statuses: Mapping[str, str]
    hit_ratio: str
    hit_ratio_more: str
    p50: str
    p95: str
    add_p95: str
    last_day: str
    waiting: str
    waiting_more: str
    overdue: str
    overdue_more: str
    dead: str
    dead_more: str
    unknown: str
    health: str
    states: Mapping[str, str]
    parts: Mapping[str, str]
    notes: Mapping[str, str]
    usage: str
    usage_scope_all: str
    usage_scope_own: str
    recalls_by_hour: str
    hits: str
    misses: str
    failures: str
    times_by_hour: str
    half: str
    most: str
    turns_by_day: str
    added: str
    stored: str
    spent_by_day: str
    hour: str
    day: str
    as_table: str
    nothing_yet: str
    tenants: str
    tenant: str
    recalls: str
    chat_tokens: str
    tokens: str
    cost: str
    keys_in_force: str
    last_month: str
    letters: str
    letters_none: str
    letters_intro: str
    letter_facts: str
    letter_name: str
    show_text: str
    hide_text: str
    text_hint: str
    replay: str
    replay_hint: str
    drop: str
    drop_warning: str
    drop_now: str
    replay_all: str
    replay_all_now: str
    drop_all: str
    sure: str
    all_hint: str
    all_hint_everywhere: str
    drop_all_now: str
    more_letters: str
    first_letters: str
    unsure: str
    keys: str
    keys_none: str
    keys_intro: str
    key_name: str
    key_id: str
    may: str
    user_known: str
    made: str
    ends: str
    state: str
    good: str
    ended: str
    revoked: str
    never: str
    actions: str
    revoke: str
    revoke_warning: str
    revoke_now: str
    rotate: str
    rotate_hint: str
    rotate_now: str
    new_key: str
    new_key_name: str
    new_key_scopes: str
    new_key_ends: str
    new_key_never: str
    new_key_days: str
    new_key_now: str
    key_made: str
    key_made_once: str
    go_back: str
    policy: str
    policy_of: str
    policy_file: str
    policy_settings: str
    kinds: str
    kind: str
    is_kept: str
    yes: str
    no: str
    kept_for: str
    days: str
    for_good: str
    as_turns: str
    meaning: str
    threshold: str
    extraction: str
    extractions: Mapping[str, str]
    turns_kept_for: str
    daily_budget: str
    no_limit: str
    redaction: str
    sensitive: str
    action: str
    redacted_kinds: Mapping[str, str]
    redaction_actions: Mapping[str, str]
    identities: Mapping[str, str]
    told: Mapping[str, str]
    problem: str
    problems: Mapping[str, str]
    problem_otherwise: str
    age_s: str
    age_min: str
    age_h: str
    age_d: str

    def moment(self, moment: datetime) -> str:
        """A moment, to the minute."""
        if self.lang != "en":
            return f"{moment.year}年{moment.month}月{moment.day}日 {moment:%H:%M}"
        return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}, {moment:%H:%M}"

    def short_day(self, moment: datetime) -> str:
        """A day of this year."""
        if self.lang != "en":
            return f"{moment.month}月{moment.day}日"
        return f"{moment.day} {_MONTHS[moment.month - 1]}"

    def span(self, seconds: float) -> str:
        """How long something takes or has taken, in its largest unit."""
        for most_s, unit_s, words in (
            (120, 1, self.age_s),
            (7200, 60, self.age_min),
            (172_800, 3600, self.age_h),
        ):
            if seconds < most_s:
                return words.format(count=int(seconds // unit_s))
        return self.age_d.format(count=int(seconds // 86_400))


_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

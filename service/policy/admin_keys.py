"""Parts of the page `/admin`: API keys, and the policy in force."""

from collections.abc import Sequence
from typing import Final

from service.policy.admin_charts import table
from service.policy.admin_parts import dollars, folded, hidden, moment, section, whole
from service.policy.admin_view import Key, Overview
from service.policy.admin_words import AdminTexts
from service.policy.html import NOTHING, Html, fill, join
from service.policy.kinds import Kind
from service.policy.redaction_types import KINDS
from service.policy.tenant_policy import TenantPolicy

# Days after which a new key ends, 0 for never.
LIFETIMES: Final = (0, 30, 90, 365)


def keys(texts: AdminTexts, shown: Overview) -> Html:
    """The keys of the visitor's tenant, and a form that makes one."""
    if shown.keys is None:
        return section("keys", texts.keys, fill("<p>{unknown}</p>", unknown=texts.unknown))
    heads = [
        texts.key_name, texts.may, texts.user_known, texts.made, texts.ends, texts.state, texts.actions,
    ]  # fmt: skip
    rows = [_row(texts, shown, key, f"k{number}") for number, key in enumerate(shown.keys)]
    intro = texts.keys_intro.format(tenant=shown.tenant)
    listed = (
        join([fill("<p>{intro}</p>", intro=intro), table(texts.keys, heads, rows, is_wide=True)])
        if rows
        else fill("<p>{none}</p>", none=texts.keys_none)
    )
    return section("keys", texts.keys, join([listed, _new_key(texts, shown)]))


def _row(texts: AdminTexts, shown: Overview, key: Key, name: str) -> Sequence[object]:
    state, kind = (texts.good, "is-ok") if key.is_good else (texts.ended, "is-bad")
    if key.revoked_at:
        state = texts.revoked
    actions: list[Html] = []
    fields = hidden(form_key=shown.form_key, id=key.id)
    if key.is_good and key.can_rotate:
        actions.append(
            folded(
                texts.rotate,
                texts.rotate_hint,
                "admin/rotate-key",
                fields,
                texts.rotate_now,
                about=name,
            )
        )
    if key.is_good:
        actions.append(
            folded(
                texts.revoke,
                texts.revoke_warning,
                "admin/revoke-key",
                fields,
                texts.revoke_now,
                kind="danger",
                about=name,
            )
        )
    return [
        fill('<span id="{name}">{words} <code>{id}</code></span>', name=name, words=key.name, id=key.id),
        ", ".join(key.scopes),
        texts.identities.get(key.identity, key.identity),
        moment(texts, key.created_at, shown.zone),
        moment(texts, key.expires_at, shown.zone),
        fill('<span class="state {kind}">{state}</span>', kind=kind, state=state),
        join(actions) if actions else NOTHING,
    ]


def _new_key(texts: AdminTexts, shown: Overview) -> Html:
    scopes = join(
        fill(
            '<p class="tick"><input type="checkbox" id="scope-{scope}" name="scope_{scope}" value="yes"{on}>'
            '<label for="scope-{scope}"><code>{scope}</code></label></p>',
            scope=scope,
            on=Html(" checked") if scope in ("recall", "add") else NOTHING,
        )
        for scope in sorted(shown.scopes)
    )
    lifetimes = join(
        fill(
            '<option value="{days}">{words}</option>',
            days=days,
            words=texts.new_key_days.format(days=days) if days else texts.new_key_never,
        )
        for days in LIFETIMES
    )
    return fill(
        '<details class="narrow"><summary>{title}</summary><form method="post" action="admin/create-key">'
        '{hidden}<label for="new-name">{name}</label>'
        '<input type="text" id="new-name" name="name" maxlength="64" required autocomplete="off">'
        '<fieldset><legend>{may}</legend><div class="ticks">{scopes}</div></fieldset>'
        '<label for="new-ends">{ends}</label><select id="new-ends" name="days">{lifetimes}</select>'
        "<button>{now}</button></form></details>",
        title=texts.new_key,
        hidden=hidden(form_key=shown.form_key),
        name=texts.new_key_name,
        may=texts.new_key_scopes,
        scopes=scopes,
        ends=texts.new_key_ends,
        lifetimes=lifetimes,
        now=texts.new_key_now,
    )


def policy(texts: AdminTexts, shown: Overview) -> Html:
    """What the visitor's tenant keeps."""
    it = shown.policy
    keep = it.policy.keep
    days = it.retention_days
    facts = [
        (texts.turns_kept_for, texts.days.format(days=days) if days else texts.for_good),
        (texts.extraction, texts.extractions.get(it.extraction, it.extraction)),
        (texts.threshold, f"{keep.threshold:g}"),
        (texts.daily_budget, _budget(texts, it.policy)),
    ]
    kinds = [
        [
            kind.name,
            texts.yes if kind.keep else texts.no,
            _kept_for(texts, kind),
            kind.description_zh if texts.lang != "en" and kind.description_zh else kind.description,
        ]
        for kind in keep.kinds
    ]
    sensitive = [
        [texts.redacted_kinds.get(kind, kind), texts.redaction_actions[it.policy.redaction.action(kind)]]
        for kind in KINDS
    ]
    body = fill(
        "<p>{of}</p><dl>{facts}</dl><h3>{kinds_title}</h3>{kinds}<h3>{redaction_title}</h3>{redaction}",
        of=texts.policy_of.format(
            tenant=shown.tenant, source=texts.policy_file if it.has_file else texts.policy_settings
        ),
        facts=join(fill("<dt>{name}</dt><dd>{value}</dd>", name=name, value=value) for name, value in facts),
        kinds_title=texts.kinds,
        kinds=table(
            texts.kinds, [texts.kind, texts.is_kept, texts.kept_for, texts.meaning], kinds, is_wide=True
        ),
        redaction_title=texts.redaction,
        redaction=fill(
            '<div class="narrow">{table}</div>',
            table=table(texts.redaction, [texts.sensitive, texts.action], sensitive),
        ),
    )
    return section("policy", texts.policy, body)


def _kept_for(texts: AdminTexts, kind: Kind) -> str:
    if kind.retention_days is None:
        return texts.as_turns
    return texts.days.format(days=kind.retention_days)


def _budget(texts: AdminTexts, policy: TenantPolicy) -> str:
    limits = [dollars(policy.llm_daily_usd)] if policy.llm_daily_usd else []
    if policy.llm_daily_tokens:
        limits.append(f"{whole(policy.llm_daily_tokens)} {texts.tokens}")
    return " · ".join(limits) or texts.no_limit

"""Parts of the page `/me`: the search, what waits, the memories, the receipt."""

import re
from datetime import tzinfo
from itertools import groupby

from service.policy.html import NOTHING, Html, fill, join
from service.policy.me_texts import Texts
from service.policy.me_view import Done, Shown, View, day_of, kind_name, moment_of
from service.schemas_review import ListedMemory

_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


def kept(texts: Texts, shown: Shown) -> str:
    """How long what was said is kept."""
    days = shown.retention_days
    said = [texts.kept_for.format(days=days) if days else texts.kept_always]
    said += [
        texts.kind_kept_for.format(kind=kind_name(texts, shown.kinds, kind.name), days=kind.retention_days)
        for kind in shown.kinds
        if kind.retention_days is not None
    ]
    return " ".join(said)


def done_box(texts: Texts, done: Done, zone: tzinfo) -> Html:
    """What was done last, with its receipt."""
    if done.what == "corrected":
        said = texts.corrected
    elif done.what == "all":
        said = texts.deleted_all
    elif done.memories or done.documents or done.pending:
        said = texts.deleted_one
    else:
        said = texts.deleted_nothing
    receipt = NOTHING if done.what == "corrected" else _receipt(texts, done, zone)
    return fill(
        '<div class="done" role="status" tabindex="-1" autofocus><h2>{said}</h2>{receipt}</div>',
        said=said,
        receipt=receipt,
    )


def _receipt(texts: Texts, done: Done, zone: tzinfo) -> Html:
    rows = [
        (texts.receipt_number, done.number),
        (texts.receipt_at, moment_of(texts, done.at, zone)),
        (texts.receipt_memories, done.memories),
        (texts.receipt_documents, done.documents),
        (texts.receipt_pending, done.pending),
        (texts.receipt_jobs, done.jobs),
        (texts.receipt_cache, done.cache_entries),
        (texts.receipt_verified, texts.verified if done.is_verified else texts.not_verified),
    ]
    lines = join(fill("<dt>{name}</dt><dd>{value}</dd>", name=name, value=value) for name, value in rows)
    return fill("<h3>{title}</h3><dl>{lines}</dl>", title=texts.receipt, lines=lines)


def _view_fields(view: View, cursor: str, form_key: str) -> Html:
    fields = {
        "form_key": form_key,
        "query": view.query,
        "kind": view.kind,
        "until": view.until,
        "superseded": "yes" if view.has_superseded else "",
        "cursor": cursor,
    }
    return join(
        fill('<input type="hidden" name="{name}" value="{value}">', name=name, value=value)
        for name, value in fields.items()
    )


def _view_button(view: View, cursor: str, form_key: str, name: str) -> Html:
    return fill(
        '<form method="post" action="me/view">{fields}<button class="plain">{name}</button></form>',
        fields=_view_fields(view, cursor, form_key),
        name=name,
    )


def search(texts: Texts, shown: Shown) -> Html:
    """The form that chooses what is shown."""
    view = shown.view
    options = join(
        fill(
            '<option value="{value}"{chosen}>{name}</option>',
            value=value,
            chosen=Html(" selected") if value == view.kind else NOTHING,
            name=name,
        )
        for value, name in [
            ("", texts.any_kind),
            *((kind.name, kind_name(texts, shown.kinds, kind.name)) for kind in shown.kinds),
        ]
    )
    form = fill(
        """<section aria-labelledby="look"><h2 id="look">{title}</h2>
<form method="post" action="me/view" role="search" aria-labelledby="look">
<input type="hidden" name="form_key" value="{form_key}">
<label for="query">{query}</label>
<input type="search" id="query" name="query" maxlength="100" value="{asked}" aria-describedby="query-hint">
<p class="faint" id="query-hint">{query_hint}</p>
<div class="fields"><div><label for="kind">{kind}</label>
<select id="kind" name="kind">{options}</select></div>
<div><label for="until">{until}</label><input type="date" id="until" name="until" value="{day}"></div></div>
<p class="tick"><input type="checkbox" id="superseded" name="superseded" value="yes"{ticked}>
<label for="superseded">{superseded}</label></p>
<button>{show}</button></form>""",
        title=texts.look,
        form_key=shown.form_key,
        query=texts.query,
        asked=view.query,
        query_hint=texts.query_hint,
        kind=texts.kind,
        options=options,
        until=texts.until,
        day=view.until,
        ticked=Html(" checked") if view.has_superseded else NOTHING,
        superseded=texts.superseded,
        show=texts.show,
    )
    everything = (
        _view_button(View(), "", shown.form_key, texts.show_all)
        if view.is_narrow or view.has_superseded
        else NOTHING
    )
    return join([form, everything, Html("</section>")])


def waiting(texts: Texts, shown: Shown) -> Html:
    """What was said and is no memory yet."""
    if not shown.pending:
        return NOTHING
    more = (
        fill("<p>{more}</p>", more=texts.waiting_more.format(shown=len(shown.pending)))
        if shown.pending_count > len(shown.pending)
        else NOTHING
    )
    items = join(
        fill(
            '<li>{words}<p class="faint">{when}</p>{delete}</li>',
            words=_words(turn.text, f"p{number}"),
            when=moment_of(texts, turn.created_at, shown.zone),
            delete=_delete(texts, turn.id, f"p{number}", shown.form_key),
        )
        for number, turn in enumerate(shown.pending)
    )
    return fill(
        '<section aria-labelledby="waiting"><h2 id="waiting">{title}</h2><p>{intro}</p>{more}'
        '<ul class="list">{items}</ul></section>',
        title=texts.waiting.format(count=shown.pending_count),
        intro=texts.waiting_intro,
        more=more,
        items=items,
    )


def memories(texts: Texts, shown: Shown) -> Html:
    """The memories by date."""
    numbered = list(enumerate(shown.memories))
    days = groupby(numbered, lambda item: day_of(texts, item[1].created_at, shown.zone))
    return join(
        fill(
            '<h3>{day}</h3><ul class="list">{items}</ul>',
            day=day,
            items=join(_memory(texts, shown, memory, f"m{number}") for number, memory in items),
        )
        for day, items in days
    )


def _memory(texts: Texts, shown: Shown, memory: ListedMemory, name: str) -> Html:
    facts = []
    if memory.kind:
        facts.append(texts.kind_is.format(kind=kind_name(texts, shown.kinds, memory.kind)))
    elif memory.type == "fact":
        facts.append(texts.no_kind)
    facts.append(_origin(texts, memory, shown.zone))
    if memory.importance is not None:
        facts.append(texts.importance.format(value=f"{memory.importance:g}"))
    if memory.tags:
        facts.append(texts.tags.format(tags=", ".join(memory.tags)))
    return fill(
        '<li>{words}{facts}<div class="two-ways">'
        '<details><summary aria-describedby="{name}">{correct}</summary>'
        '<form method="post" action="me/correct"><input type="hidden" name="form_key" value="{form_key}">'
        '<input type="hidden" name="memory_id" value="{id}"><label for="{name}-new">{new_words}</label>'
        '<textarea id="{name}-new" name="text" rows="3" maxlength="8000" required>\n{text}</textarea>'
        '<p class="faint">{hint}</p><button>{save}</button></form></details>{delete}</div></li>',
        words=_words(memory.text, name),
        facts=join(fill('<p class="faint">{fact}</p>', fact=fact) for fact in facts),
        name=name,
        correct=texts.correct,
        form_key=shown.form_key,
        id=memory.id,
        new_words=texts.new_words,
        text=memory.text,
        hint=texts.correct_hint,
        save=texts.save,
        delete=_delete(texts, memory.id, name, shown.form_key),
    )


def _origin(texts: Texts, memory: ListedMemory, zone: tzinfo) -> str:
    time = moment_of(texts, memory.created_at, zone)
    if memory.type == "observation":
        count = len(memory.source_ids)
        return (
            texts.from_one.format(time=time)
            if count == 1
            else texts.from_observation.format(count=count, time=time)
        )
    if not memory.conversation:
        return texts.from_unknown.format(time=time)
    # Enough of the digest to see which memories belong together.
    return texts.from_turn.format(name=memory.conversation[2:8], time=time)


def _words(text: str, name: str) -> Html:
    # A page in the other language is read out in the wrong voice otherwise.
    spoken = Html(' lang="zh"') if _HAN.search(text) else NOTHING
    return fill(
        '<p class="words" id="{name}" dir="auto"{spoken}>{text}</p>', name=name, spoken=spoken, text=text
    )


def _delete(texts: Texts, memory_id: str, name: str, form_key: str) -> Html:
    return fill(
        '<details><summary aria-describedby="{name}">{delete}</summary><p>{warning}</p>'
        '<form method="post" action="me/forget"><input type="hidden" name="form_key" value="{form_key}">'
        '<input type="hidden" name="memory_id" value="{id}">'
        '<button class="danger" aria-describedby="{name}">{now}</button></form></details>',
        name=name,
        delete=texts.delete,
        warning=texts.delete_one_warning,
        form_key=form_key,
        id=memory_id,
        now=texts.delete_now,
    )


def pages(texts: Texts, shown: Shown) -> Html:
    """Ways to older and to the newest memories."""
    buttons = []
    if shown.next_cursor:
        buttons.append(_view_button(shown.view, shown.next_cursor, shown.form_key, texts.older))
    if shown.view.cursor:
        buttons.append(_view_button(shown.view, "", shown.form_key, texts.newest))
    return join(buttons)

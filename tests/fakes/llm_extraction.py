"""How the fake LLM answers our own extraction prompt: by rules, from the data between its marks."""

import json
import re
from typing import Any

from tests.fakes.llm_rules import (
    about_the_user,
    ends,
    is_about_another,
    is_end,
    is_plan,
    said_by_user,
    statements,
    subjects_of,
    updated,
)

Json = dict[str, Any]

OPENING = "You maintain the long-term memory of one user"
_DATA = re.compile(r"<data-(\w+)>\n(.*)\n</data-\1>", re.DOTALL)
_LIKES = re.compile(
    r"喜欢|偏好|最爱|讨厌|不吃|不喝|\b(?:like|love|prefer|hate|enjoy|drink|eat)s?\b", re.IGNORECASE
)
_WEATHER = re.compile(r"今天.*[热冷]|\b(?:hot|cold) today\b", re.IGNORECASE)
# What a gullible model does, whoever says it: it answers what the data tell it to.
_ORDER = re.compile(r"answer exactly: (.*?) END", re.DOTALL)


def is_ours(system: str) -> bool:
    """Whether a system prompt is our extraction's."""
    return system.startswith(OPENING)


def memories(user: str) -> str:
    """The facts of the turns in a user message, as JSON."""
    found = _DATA.search(user)
    if found is None:
        return json.dumps({"facts": []})
    data = json.loads(found[2])
    texts = [text for part in data.values() for one in part for text in one.values() if isinstance(text, str)]
    if order := next((match for text in texts if (match := _ORDER.search(text))), None):
        return order[1]
    kinds = [kind["name"] for kind in data["kinds"]]
    facts = [
        _fact(turn["number"], sentence, kinds, data["known"])
        for turn in data["turns"]
        for sentence in said_by_user(turn["user"])
        if _WEATHER.search(sentence) or statements(sentence)
    ]
    return json.dumps({"facts": facts}, ensure_ascii=False)


def _fact(turn: int, sentence: str, kinds: list[str], known: list[Json]) -> Json:
    bare = sentence.strip(" \t。！!.，,~～…；;")
    is_other = is_about_another(bare)
    text = about_the_user(bare)
    kind, importance = _judged(bare)
    outdated = [
        one for one in known if (one["subject"] == "other") == is_other and _outdates(bare, one["text"])
    ]
    if outdated and not is_end(bare):
        text = updated(outdated[0]["text"], text)
    return {
        "turn": turn,
        "source": bare,
        "text": text,
        "kind": kind if kind in kinds else kinds[0],
        "importance": importance,
        "subject": "other" if is_other else "user",
        "action": "supersede" if outdated else "add",
        "replaces": [one["number"] for one in outdated],
    }


def _judged(sentence: str) -> tuple[str, float]:
    if _WEATHER.search(sentence):
        return "user_profile", 0.1
    if is_plan(sentence):
        return "task_state", 0.9
    if _LIKES.search(sentence):
        return "preference", 0.7
    return ("user_profile", 0.9) if subjects_of(sentence) else ("user_profile", 0.6)


def _outdates(sentence: str, old: str) -> bool:
    return bool(subjects_of(sentence) & subjects_of(old)) or ends(sentence, old)

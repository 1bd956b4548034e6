"""How a bank has to be configured in Hindsight, by who makes memories of what was said."""

from typing import Any, Final, Literal

from service.policy.kinds import IMPORTANCE_TAG, KIND_TAG, KeepPolicy

Mode = Literal["auto", "litellm", "hindsight", "none"]

_IMPORTANCES: Final = {
    "0.1": "Small talk, the weather, what is over tomorrow.",
    "0.3": "Rarely useful.",
    "0.5": "Sometimes useful.",
    "0.7": "Often useful.",
    "0.9": "Shapes most future answers: health, home, work, family, budget, firm limits.",
}


def bank_config(mode: Mode, policy: KeepPolicy) -> dict[str, Any]:
    """The configuration to set; empty where it is left as it is (`auto`: nobody was chosen, or not yet).

    `litellm`, `none`: texts are stored as they come, without a second extraction, and nothing is
    consolidated: what is outdated, we know. `hindsight`: each fact is labelled with kind and importance,
    which become tags, and observations are kept apart by kind, so that they carry it, too.
    """
    if mode == "auto":
        return {}
    if mode != "hindsight":
        return {"retain_extraction_mode": "chunks", "enable_observations": False}
    kinds = [
        {"value": kind.name, "description": f"{kind.description} {kind.description_zh}".strip()}
        for kind in policy.kinds
    ]
    importances = [{"value": value, "description": text} for value, text in _IMPORTANCES.items()]
    return {
        "retain_extraction_mode": "concise",
        "enable_observations": True,
        "entity_labels": [
            _group(KIND_TAG, "What kind of memory about the user this is; none if it is of no kind.", kinds),
            _group(IMPORTANCE_TAG, "How much this matters for future answers to the user.", importances),
        ],
        "default_observation_scopes": [[f"{KIND_TAG}*"]],
    }


def _group(tag: str, description: str, values: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "key": tag.rstrip(":"),
        "description": description,
        "type": "value",
        "optional": True,
        "tag": True,
        "values": values,
    }

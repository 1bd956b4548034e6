"""Which files pytest-xdist hands out first, and which of them to the same process.

By itself it begins with the files of the most tests. The longest have few, so that one of them would run at
the end while the other processors have nothing to do.
"""

import re

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# By the time that they took, from two minutes and a half to about ten seconds; what is not here is shorter.
LONGEST_FIRST = (
    "e2e/test_templates_stack.py",
    "e2e/test_stack.py",
    "e2e/test_fake_llm_hindsight.py",
    "e2e/test_backup_stack.py",
    "e2e/test_templates_wire.py",
    "e2e/test_behaviours_stack.py",
    "e2e/test_packages.py",
    "integration/test_worker_process.py",
    "integration/test_openai.py",
    "integration/test_forget_windows.py",
    "integration/test_keys.py",
    "integration/test_embedded_up.py",
    "integration/test_dify_templates.py",
    "integration/test_extract.py",
    "integration/test_add_fallback.py",
    "integration/test_admin_page.py",
    "integration/test_replays_add.py",
    "integration/test_store_outcomes.py",
    "integration/test_openapi_fuzz.py",
    "integration/test_forget.py",
    "integration/test_upgrade.py",
    "integration/test_observability.py",
    "integration/test_api_carry.py",
    "integration/test_traces.py",
    "integration/test_injection_doors.py",
    "integration/test_dify_tools.py",
    "integration/test_audit.py",
    "integration/test_store_fairness.py",
    "integration/test_extract_bad_answers.py",
    "integration/test_tenants.py",
    "integration/test_extract_words.py",
    "integration/test_extraction_mode.py",
    "unit/test_content.py",
)
# What works on the same running stack, under the first of them.
TOGETHER = (
    (
        "e2e/test_templates_stack.py",
        "e2e/test_chatflow_openai_stack.py",
        "e2e/test_openai_stack.py",
        "e2e/test_doctor_stack.py",
        "e2e/test_dead_stack.py",
        "e2e/test_stand_in_is_faithful.py",
    ),
    ("e2e/test_stack.py", "e2e/test_webhook_stack.py", "e2e/test_tenants_stack.py"),
    (
        "e2e/test_fake_llm_hindsight.py",
        "e2e/test_llm_stack.py",
        "e2e/test_reflect_stack.py",
        "e2e/test_forget_stack.py",
        "e2e/test_review_stack.py",
    ),
)
# A stack of its own for each mode, named first among the parameters.
_BY_MODE = re.compile(r"e2e/test_behaviours_stack\.py::\w+\[(\w+)")

_RANKS = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
_FIRSTS = {name: group[0] for group in TOGETHER for name in group}


def scope_of(node_id: str) -> str:
    """The unit of work that a test belongs to: its file, apart from what shares a stack or does not."""
    name = node_id.partition("::")[0].removeprefix("tests/")
    by_mode = _BY_MODE.search(node_id)
    return f"{name}[{by_mode[1]}]" if by_mode else _FIRSTS.get(name, name)


def rank_of(node_id: str) -> tuple[int, bool]:
    """Where a test stands in the order: the longest units first, unit tests last."""
    scope = scope_of(node_id)
    return _RANKS.get(scope.partition("[")[0], len(_RANKS)), scope.startswith("unit/")


class Schedule(LoadFileScheduling):  # type: ignore[misc]
    """`--dist loadfile` in the order of the collection and by the units above."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

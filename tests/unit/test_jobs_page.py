"""The page on jobs names every kind with its scope and queue, and every reason that something may wait for."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import nexus_tasks.tasks
from nexus_tasks.cli.words import _WAITS
from nexus_tasks.idempotency.kind import declared
from nexus_tasks.tasks import derive_memory, digest_session, follow_ups, submit_batch

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")
CODE = Path(nexus_tasks.tasks.__file__).parents[1]


def test_every_kind_is_on_the_page() -> None:
    ours = {
        (
            kind.name,
            ", ".join(field.removesuffix("_id").removesuffix("_key") for field in kind.arguments.scope),
            kind.queue,
        )
        for kind in declared().values()
        if kind.declared_at.startswith("nexus_tasks.")
    }
    assert set(re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| `(\w+)` \|$", PAGE, re.MULTILINE)) == ours


def test_every_reason_to_wait_is_on_the_page_and_has_words() -> None:
    table = PAGE.partition("## Why a job waits")[2].partition("##")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    python = "\n".join(file.read_text(encoding="utf-8") for file in CODE.rglob("*.py"))
    lua = "\n".join(
        file.read_text(encoding="utf-8") for file in (resources.files("nexus_tasks") / "idempotency" / "lua").iterdir()
    )
    given = set(re.findall(r'(?:Wait\(|Decision\(reason=|wait_reason = |wait_reason: .*?= )"(\w+)"', python))
    given |= {derive_memory.RIPENESS, digest_session.DERIVATION, follow_ups.DREAM, submit_batch.BATCH}
    given |= {
        one
        for pair in re.findall(r"'wait_reason', '(\w+)', 'wait_detail'|to_waiting\(key, '(\w+)'", lua)
        for one in pair
    }
    assert {"ripeness", "batch", "version", "crash", "budget"} <= given
    assert given - {""} <= named
    assert named - {"ripeness"} == set(_WAITS)

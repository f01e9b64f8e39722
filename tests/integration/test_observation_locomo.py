"""A real conversation of months glued into one session: its context at every message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cognition.observing import view_block
from nexus_tasks.deployment import default_deployment
from nexus_tasks.integrations.importers import read
from tests.integration.inline import NAMESPACE, work
from tests.sandbox import Sandbox

LOCOMO = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "dev.json"
SMALL = {
    "NEXUS_OBSERVATION_MESSAGE_TOKENS": "1500",
    "NEXUS_OBSERVATION_BUFFER_TOKENS": "400",
    "NEXUS_OBSERVATION_BLOCK_AFTER_TOKENS": "2000",
    "NEXUS_OBSERVATION_MAX_BATCH_TOKENS": "600",
    "NEXUS_PREVIOUS_OBSERVER_TOKENS": "200",
    "NEXUS_REFLECTION_OBSERVATION_TOKENS": "1500",
    "NEXUS_REFLECTION_BLOCK_AFTER_TOKENS": "2000",
}


@pytest.mark.long
@pytest.mark.skipif(not LOCOMO.exists(), reason=f"needs LoCoMo's development half at {LOCOMO}")
def test_the_context_stays_small_and_its_beginning_stays_the_same(deploy: Callable[..., Sandbox]) -> None:
    here = deploy(**SMALL)
    nexus, most = Nexus(), view_block.default_bound(default_deployment().settings)
    parts = list(read(LOCOMO, "locomo", namespace=NAMESPACE))
    said = [message for part in parts if part.namespace == parts[0].namespace for message in part.messages]
    before, generation, generations = "", 0, 0
    for message in said:
        nexus.ingest(NAMESPACE, "one", [message], observe=True, observers=[])
        work("observe_session", "reflect_observations")
        found = nexus.context(NAMESPACE, session_key="one", observe=True)
        assert found.tokens <= most
        assert found.notes == ()
        [(now,)] = here.sql("SELECT generation FROM observation_logs")
        if now == generation:
            assert found.text.startswith(before)
        else:
            generations += 1
        before, generation = found.text, now
    [(through, rewritten)] = here.sql("SELECT observed_through_seq, rewritten FROM observation_logs")
    assert len(said) > 300
    assert generations > 10
    assert rewritten > 0
    assert list(found.sections[-1].ids) == [one.id for one in nexus.session(NAMESPACE, "one").said if one.seq > through]
    whole = sum(len(message.content) for message in said) / 4
    assert most < whole / 2  # what is read is a fraction of what was said

"""``nexus metrics``: what a monitoring system reads is what status says."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nexus_tasks import Nexus
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, say, work


@pytest.mark.usefixtures("here")
def test_metrics_say_what_status_says() -> None:
    say("I drink green tea.", "I moved to Lisbon.", end=True)
    say("Hello.", session='a "quoted" one', namespace="other/team")
    work("derive_memory")
    told = nexus("metrics")
    assert told.returncode == 0, told.stderr
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(told.stdout)
        for sample in family.samples
    }
    status = {one.namespace: one for one in Nexus().status().namespaces}
    assert found["nexus_memories", NAMESPACE, "raw"] == 2
    assert found["nexus_memories", NAMESPACE, "explicit"] == status[NAMESPACE].memories["explicit"] > 0
    assert found["nexus_underived_messages", NAMESPACE] == 0
    assert found["nexus_jobs", "dead", "other/team"] == 0
    assert ("nexus_queued_messages", "derive") in found
    documents = json.loads(nexus("metrics", "--json").stdout)["metrics"]
    assert {(one["name"], *sorted(one["labels"].values())) for one in documents} == found.keys()

"""Three minutes of tenants, a flood and faults: nothing grows, and no message is lost."""

from __future__ import annotations

import pytest

from benchmarks.machine import table
from benchmarks.soak import growth, soaked
from nexus_tasks.embedded import ServerAddresses


def test_growth_sees_a_leak_and_no_spike() -> None:
    flat = [(float(at), 100.0 + (at % 3)) for at in range(100)]
    spiked = [(at, 500.0 if at in (40.0, 41.0) else value) for at, value in flat]
    leaking = [(at, value + at) for at, value in flat]
    assert abs(growth(flat)) < 1
    assert abs(growth(spiked)) < 1
    assert 95 < growth(leaking) < 105


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_deployment_stays_steady(servers: ServerAddresses) -> None:
    soak, rows, bad = soaked(servers, 3.0)
    assert soak.faults >= 6
    assert bad == [], f"{bad}\n{table(['figure', 'mean', 'growth', 'bound', ''], rows)}"

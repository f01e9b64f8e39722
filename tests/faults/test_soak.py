"""Three minutes of tenants, a flood and faults, after two to warm up: nothing grows, and no message is lost."""

from __future__ import annotations

import pytest

from benchmarks.machine import table
from benchmarks.soak import growth, peaks, soaked
from nexus_tasks.embedded import ServerAddresses


def test_growth_sees_a_leak_and_no_spike() -> None:
    flat = [(float(at), 100.0 + (at % 3)) for at in range(100)]
    spiked = [(at, 500.0 if at in (40.0, 41.0) else value) for at, value in flat]
    leaking = [(at, value + at) for at, value in flat]
    assert abs(growth(flat)) < 1
    assert abs(growth(spiked)) < 1
    assert 95 < growth(leaking) < 105


def test_a_figure_that_falls_at_each_fault_and_climbs_again_does_not_grow() -> None:
    def climbing(leak: float) -> list[tuple[float, float]]:  # up to 12, and to 0 again every 60 s
        return [(float(at), at % 60 / 5 + leak * at) for at in range(0, 151, 3)]

    def after_warm_up(samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(at, value) for at, value in samples if at >= 60]

    assert growth(after_warm_up(climbing(0))) > 10, "single samples depend on where in the climb the first and last are"
    assert {value for _, value in after_warm_up(peaks(climbing(0), 60))} == {57 / 5}, "the last sample of each climb"
    assert abs(growth(after_warm_up(peaks(climbing(0), 60)))) < 1
    assert growth(after_warm_up(peaks(climbing(0.1), 60))) > 6  # of the 9 that were added


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_deployment_stays_steady(servers: ServerAddresses) -> None:
    # the worker's heap fills within the first two minutes
    soak, rows, bad = soaked(servers, 5.0, warm_up=2.0)
    assert soak.faults >= 6
    assert bad == [], f"{bad}\n{table(['figure', 'mean', 'growth', 'bound', ''], rows)}"

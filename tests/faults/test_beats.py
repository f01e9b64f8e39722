"""Two beats at once: each tick of the schedule is done once per slot."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.beat import PersistentScheduler, Service
from celery.signals import beat_init

from tests.sandbox import Sandbox, eventually

EVERY = 1.0
CONFIG = f"""
from nexus_tasks.config import *
from nexus_tasks.config import __dir__, __getattr__
beat_schedule = {{"prune": {{"task": "nexus_tasks.prune", "schedule": {EVERY}}}}}
"""
ENDED = re.compile(r"\[(\S+ \S+?),\d+: .*Task nexus_tasks\.prune\[.*succeeded in \S+s: (\{.*\})")


@pytest.mark.long
def test_two_beats_do_a_tick_once(here: Sandbox) -> None:
    (here.folder / "quick_beats.py").write_text(CONFIG)
    environment = {**here.environment, "CELERY_CONFIG_MODULE": "quick_beats", "PYTHONPATH": str(here.folder)}
    worker = here.worker(CELERY_CONFIG_MODULE="quick_beats", PYTHONPATH=str(here.folder))
    beats = []
    try:
        for number in range(2):
            schedule = str(here.folder / f"schedule-{number}")
            command = (sys.executable, "-m", "celery", "-A", "nexus_tasks", "beat", "--pidfile", "", "-s", schedule)
            beats.append(subprocess.Popen(command, env=environment, cwd=here.folder, stderr=subprocess.DEVNULL))

        def ticks() -> tuple[list[datetime], int]:
            """When ticks were done, and how many of them somebody had done already."""
            found = ENDED.findall(worker.text())
            return [datetime.fromisoformat(at) for at, said in found if said != "{}"], sum(
                said == "{}" for _, said in found
            )

        done, _ = eventually(lambda: (t := ticks())[0][2:] and t[1] > 2 and t, within=120, why=worker.text()) or ticks()
        assert len(done) <= (done[-1] - done[0]).total_seconds() / EVERY + 2
    finally:
        for beat in beats:
            beat.send_signal(signal.SIGKILL)
            beat.wait()


def test_ticks_come_although_the_clock_of_beat_goes_back(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The clock is ahead by a day. Then it is set right, while beat runs or before it is started again."""
    clock, sent = [datetime.now(UTC) + timedelta(days=1)], list[str]()
    application = here.deployment.app
    monkeypatch.setattr(type(application), "now", lambda _app: clock[0])
    monkeypatch.setattr(PersistentScheduler, "apply_async", lambda _s, entry, **_: sent.append(entry.name))

    def beat() -> Any:
        service = Service(application, schedule_filename=str(tmp_path / "schedule"))
        beat_init.send(sender=service)
        return service.scheduler

    def ticks(scheduler: Any, minutes: int) -> Counter[str]:
        sent.clear()
        for _ in range(minutes * 6):
            while scheduler.tick() == 0:
                pass
            clock[0] += timedelta(seconds=10)
        return Counter(sent)

    scheduler = beat()
    assert ticks(scheduler, 70)["prune"] == 1
    clock[0] -= timedelta(days=1)
    right = ticks(scheduler, 70)
    assert right["prune"] >= 1
    assert right["dream_due"] >= 60
    clock[0] += timedelta(days=400)
    ticks(scheduler, 2)
    scheduler.close()
    clock[0] -= timedelta(days=400)
    assert ticks(beat(), 70)["prune"] >= 1

"""Two beats at once: each tick of the schedule is done once per slot."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import schedules
from celery.beat import PersistentScheduler, Service
from celery.schedules import crontab
from celery.signals import beat_init

import nexus_tasks.celery  # noqa: F401 - beat imports it too
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


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe"])
@pytest.mark.parametrize("month", [3, 4, 10, 11])
def test_no_tick_comes_again_and_again_while_clocks_are_put_back(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, zone: str, month: int
) -> None:
    """An application in a time zone with daylight saving time gives our ticks crontabs. A month passes."""
    clock, sent = [datetime(2026, month, 1, 0, 7, tzinfo=UTC)], list[tuple[str, datetime]]()
    application = here.deployment.app
    application.conf.timezone = zone
    vars(application).pop("timezone", None)  # Celery remembers the zone at its first use
    beats_own = SimpleNamespace(_get_current_object=lambda: application)  # beat's process has no other application
    monkeypatch.setattr(schedules, "current_app", beats_own)
    application.conf.beat_schedule = {
        "prune": {"task": "nexus_tasks.prune", "schedule": crontab(hour="*", minute="0,20,40")},
        "dream_due": {"task": "nexus_tasks.dream_due", "schedule": crontab(hour=1, minute=30)},
        "keep_search_fast": {"task": "nexus_tasks.keep_search_fast", "schedule": 1_200.0},
    }
    monkeypatch.setattr(type(application), "now", lambda app: clock[0].astimezone(app.timezone))
    monkeypatch.setattr(PersistentScheduler, "apply_async", lambda _s, entry, **_: sent.append((entry.name, clock[0])))
    service = Service(application, schedule_filename=str(tmp_path / "schedule"))
    beat_init.send(sender=service)
    for _ in range(32 * 24 * 12):
        for _ in range(10):
            if service.scheduler.tick() > 0:
                break
        clock[0] += timedelta(minutes=5)
    found = Counter(name for name, _ in sent)
    assert 32 * 24 * 3 - 6 <= found["prune"] <= 32 * 24 * 3 + 1
    assert 32 <= found["dream_due"] <= 33 + 1  # the first one comes when beat starts
    assert 32 * 24 * 3 - 6 <= found["keep_search_fast"] <= 32 * 24 * 3 + 1
    assert max(Counter(sent).values()) == 1


@pytest.mark.parametrize("damage", [lambda _text: b"", lambda text: text[:20], lambda text: bytes(len(text))])
@pytest.mark.parametrize("ending", [".dat", ".dir", ".db", ""])
def test_beat_begins_anew_when_its_file_is_damaged(
    here: Sandbox, tmp_path: Path, damage: Callable[[bytes], bytes], ending: str
) -> None:
    application, name = here.deployment.app, tmp_path / "schedule"

    def beat() -> Any:
        return Service(application, schedule_filename=str(name), scheduler_cls=application.conf.beat_scheduler)

    beat().scheduler.close()
    path = Path(f"{name}{ending}")
    if not path.exists():  # each of Python's databases has other files
        pytest.skip(f"this Python makes no file with the ending {ending!r}")
    path.write_bytes(damage(path.read_bytes()))
    scheduler = beat().scheduler
    assert "prune" in scheduler.schedule
    scheduler.close()
    assert "prune" in beat().scheduler.schedule

"""Let beat start although the file of its last ticks is damaged, for example full of zeros after a power cut.

Celery itself replaces the file after some kinds of damage. After other kinds, beat would end at each start.
"""

from __future__ import annotations

import logging

from celery.beat import PersistentScheduler

log = logging.getLogger(__name__)


class Scheduler(PersistentScheduler):  # type: ignore[misc]
    """Celery's scheduler, which deletes a damaged file. Then each tick counts as done now."""

    def setup_schedule(self) -> None:
        """Read the file of the last ticks, and make it when it is missing or damaged."""
        try:
            super().setup_schedule()
            return
        except OSError:  # the disk is full, or the folder is closed
            raise
        except Exception as error:
            kind = type(error).__name__
            log.warning("The schedule file %s is damaged (%s). Beat makes a new one.", self.schedule_filename, kind)
        self._store = None  # closes the file
        self._remove_db()
        super().setup_schedule()

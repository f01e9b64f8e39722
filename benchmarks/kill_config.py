"""Celery settings of the kill loop's workers: the package's settings, plus the import of the benchmark's jobs."""

from nexus_tasks.config import *  # noqa: F403
from nexus_tasks.config import __dir__, __getattr__  # noqa: F401

imports = ("nexus_tasks.tasks", "benchmarks.kill_jobs")

"""Celery settings of the chaos benchmark's workers: the package's settings, plus the import of the benchmark's job."""

from nexus_tasks.config import *  # noqa: F403
from nexus_tasks.config import __dir__, __getattr__  # noqa: F401

imports = ("nexus_tasks.tasks", "benchmarks.chaos_jobs")

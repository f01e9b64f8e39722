"""Celery settings of the neighbours benchmark's workers: the package's settings, plus the import of its jobs."""

from nexus_tasks.config import *  # noqa: F403
from nexus_tasks.config import __dir__, __getattr__  # noqa: F401

imports = ("nexus_tasks.tasks", "benchmarks.neighbour_jobs")

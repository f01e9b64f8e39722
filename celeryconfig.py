"""This deployment's Celery settings: those of nexus_tasks.config, and whatever you override below.

Celery reads this file when it is in the folder a worker, beat or Flower is started from (CELERY_CONFIG_MODULE names
another one). It is not part of the wheel.
"""

from nexus_tasks.config import *  # noqa: F403
from nexus_tasks.config import __dir__, __getattr__  # noqa: F401 - the URLs, looked up when first needed

# worker_concurrency = 32

"""Your Celery settings. Those that this file does not set are those of nexus_tasks.config.

Celery reads this file when a worker, beat or Flower is started in its folder. CELERY_CONFIG_MODULE names another
module. The wheel does not contain this file.
"""

from nexus_tasks.config import *  # noqa: F403
from nexus_tasks.config import __dir__, __getattr__  # noqa: F401 - computes the URLs at first use

# worker_concurrency = 32

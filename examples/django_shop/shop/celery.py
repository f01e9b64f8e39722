"""The Celery application of the shop, which also runs the jobs of nexus-tasks."""

import os

from celery import Celery

import nexus_tasks

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop", broker=os.environ.get("SHOP_BROKER_URL", "redis://localhost:6379/1"))
app.conf.imports = ("shop.jobs",)
nexus_tasks.register(app)  # before anything else uses nexus-tasks

"""An existing Celery application that also runs the jobs of nexus-tasks.

export SHOP_BROKER_URL=redis://redis:6379/1     # of the application
export NEXUS_DATABASE_URL=postgresql://nexus:…@db/nexus NEXUS_REDIS_URL=redis://redis:6379/0
celery -A existing_app worker --beat
python existing_app.py
"""

import os

from celery import Celery

import nexus_tasks
from nexus_tasks import Message, Nexus

app = Celery("shop", broker=os.environ.get("SHOP_BROKER_URL", "redis://localhost:6379/1"))
nexus_tasks.register(app)  # before anything else uses nexus-tasks


@app.task(name="shop.remember_order")
def remember_order(customer: str, order: str) -> None:
    """A task of the application's own, which writes memory. Its worker then derives the facts."""
    Nexus().ingest("shop", customer, [Message(author=customer, content=order)], end=True)


if __name__ == "__main__":
    remember_order.delay("ann", "I order green tea every month.")

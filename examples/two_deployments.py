"""Two deployments in one process. Each has its own database, its own Redis keys and its own folder.

Both databases exist, have pgvector, and are at this release's schema (`nexus db upgrade` with each address)::

    export SHOP_DATABASE_URL=postgresql://nexus:…@db/shop
    export BLOG_DATABASE_URL=postgresql://nexus:…@db/blog
    export NEXUS_REDIS_URL=redis://redis:6379/0
    celery -A two_deployments:shop_app worker &
    celery -A two_deployments:blog_app worker &
    python two_deployments.py
"""

import os

from nexus_tasks import Deployment, Message, Nexus, Settings


def deployment(name: str) -> Deployment:
    """The deployment of this name. Nothing connects before it is used."""
    return Deployment(
        Settings(
            database_url=os.environ[f"{name.upper()}_DATABASE_URL"],
            redis_url=os.environ["NEXUS_REDIS_URL"],
            key_prefix=name,
            home=Settings().home / name,  # holds the session buffer and beat's schedule
        )
    )


shop, blog = deployment("shop"), deployment("blog")
shop_app, blog_app = shop.app, blog.app  # what `celery -A two_deployments:shop_app worker` names


def main() -> None:
    """Write to both, wait until the workers have derived the facts, and read from both."""
    clients = {"shop": Nexus(shop), "blog": Nexus(blog)}
    for name, nexus in clients.items():
        nexus.ingest("acme", "chat-1", [Message(id="m1", author="ann", content=f"I work for the {name} in Lisbon.")])
    for name, nexus in clients.items():
        if job := nexus.end_session("acme", "chat-1"):
            job.wait(timeout=120)
        print(name, [hit.content for hit in nexus.search("acme", "Lisbon", levels=["explicit"])])


if __name__ == "__main__":
    main()

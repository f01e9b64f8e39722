"""List and show topics (files of knowledge that the job ``extract_session`` keeps)."""

from __future__ import annotations

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NotFound
from nexus_tasks.storage import namespaces, topics
from nexus_tasks.types import TopicDetails, TopicInfo, check_namespace


def list_topics(deployment: Deployment, namespace: str, *, limit: int, offset: int) -> list[TopicInfo]:
    """See :meth:`nexus_tasks.client.Nexus.topics`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        return [topics.info(topic) for topic in topics.every(tx, known.id, limit=limit, offset=offset)]


def show_topic(deployment: Deployment, namespace: str, filename: str) -> TopicDetails:
    """See :meth:`nexus_tasks.client.Nexus.topic`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        found = topics.find(tx, known.id, filename)
        if found is None:
            raise NotFound(f"There is no topic {filename!r} here.", remedy="See `nexus topics list --namespace NS`.")
        return topics.details(tx, found)

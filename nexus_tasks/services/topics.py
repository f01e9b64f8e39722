"""List, show, write, rename and delete topics (files of knowledge that the job ``extract_session`` keeps)."""

from __future__ import annotations

import logging
from typing import get_args

from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.cognition.extraction.topics import LONGEST_DESCRIPTION, LONGEST_NAME, one_line
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import Conflict, InvalidInput, NotFound
from nexus_tasks.storage import audit, namespaces, topics
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure import topics as erased_topics
from nexus_tasks.storage.models import Topic
from nexus_tasks.storage.topics import LONGEST_CONTENT, TopicDraft
from nexus_tasks.tasks import extract_session, follow_ups
from nexus_tasks.transcripts import context_file
from nexus_tasks.transcripts.scrubbing import refuse_tokens, scrub
from nexus_tasks.types import MAX_NAME, TopicDetails, TopicInfo, TopicType, check_name, check_namespace, clean_text

log = logging.getLogger(__name__)

_MOST_READ = 2_000  # characters of a name or description


def list_topics(deployment: Deployment, namespace: str, *, limit: int, offset: int) -> list[TopicInfo]:
    """See :meth:`nexus_tasks.client.Nexus.topics`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        return topics.listed(tx, known.id, limit=limit, offset=offset)


def show_topic(deployment: Deployment, namespace: str, filename: str) -> TopicDetails:
    """See :meth:`nexus_tasks.client.Nexus.topic`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        return topics.details(tx, _find(tx, known.id, filename))


def write_topic(
    deployment: Deployment,
    namespace: str,
    filename: str,
    content: str,
    *,
    name: str | None,
    description: str | None,
    kind: TopicType | None,
    author: str,
    revision: int | None,
) -> TopicDetails:
    """See :meth:`nexus_tasks.client.Nexus.write_topic`."""
    check_namespace(namespace)
    given, content, author = filename, clean_text(content), check_name("author", author)
    filename = _filename(given)
    _check_length(content)  # before secrets are looked for, which takes minutes for a text that is made for it
    # Behind these characters, nothing of a name or description is stored.
    name, description = name and name[:_MOST_READ], description and description[:_MOST_READ]
    if not content.strip():
        raise InvalidInput("content is empty.", remedy="Delete the topic with `delete_topic` instead.")
    if kind not in (None, *get_args(TopicType)):
        raise InvalidInput(f"type must be one of {', '.join(get_args(TopicType))}, not {kind!r:.80}.")
    with deployment.database.transaction() as tx:
        known = namespaces.ensure(tx, namespace)
        if known.scrub:
            refuse_tokens("filename", [given, filename])
            content, name, description = scrub(content), name and scrub(name), description and scrub(description)
            author = scrub(author)[:MAX_NAME]
        _check_length(content)  # a placeholder may be longer than its secret
        there = topics.find(tx, known.id, filename, lock=True)
        first = next(line for line in content.splitlines() if line.strip()).lstrip("# -*")
        draft = TopicDraft(
            filename=filename,
            name=one_line(name or "", LONGEST_NAME) or (there.name if there else filename.removesuffix(".md")),
            description=one_line(description or (there.description if there else first), LONGEST_DESCRIPTION),
            type=kind or (there.type if there else "reference"),
            content=content,
            made_by=author,
        )
        stored = topics.write(tx, known.id, draft, revision)
        if stored is None:
            raise Conflict(f"The topic {filename} is not of revision {revision}. Nothing was stored.")
        return topics.details(tx, stored)


def _check_length(content: str) -> None:
    if len(content) > LONGEST_CONTENT:
        raise InvalidInput(
            f"content has {len(content):,} characters; a topic has at most {LONGEST_CONTENT:,}.",
            remedy="Write the rest to a topic of another name; nothing was stored.",
        )


def rename_topic(deployment: Deployment, namespace: str, filename: str, new_filename: str) -> TopicDetails:
    """See :meth:`nexus_tasks.client.Nexus.rename_topic`."""
    new = _filename(new_filename)
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        if known.scrub:
            refuse_tokens("new_filename", [new_filename, new])
        topic = _find(tx, known.id, filename, lock=True)
        if topics.rename(tx, topic, new):
            return topics.details(tx, topic)
    raise Conflict(f"There is a topic {new} already.", remedy="Choose another name, or delete that topic.")


def delete_topic(deployment: Deployment, namespace: str, filename: str) -> None:
    """See :meth:`nexus_tasks.client.Nexus.delete_topic`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        topic = _find(tx, known.id, filename, lock=True)
        erased_topics.remove_one(tx, topic, extract_session.extract_session.kind.name)
        audit.record(tx, "erase.topic", namespace, {"topics": 1})
    follow_ups.forget_errors(deployment, namespace)
    try:
        context_file.erase(str(deployment.settings.home), namespace)  # workers write the file again within 30 s
    except OSError as error:
        log.warning("A context file of %s could not be erased; a worker writes it again: %s", namespace, error.strerror)


def _filename(given: str) -> str:
    name = checked(given.strip())
    if name is None:
        raise InvalidInput(
            f"{given!r:.200} cannot be the name of a topic's file: letters, digits, . _ - and at most 128 characters,"
            " and no name with another use, such as README."
        )
    return name


def _find(tx: Transaction, namespace_id: int, filename: str, *, lock: bool = False) -> Topic:
    found = topics.find(tx, namespace_id, filename, lock=lock)
    if found is None:
        raise NotFound(f"There is no topic {filename!r} here.", remedy="See `nexus topics list --namespace NS`.")
    return found

"""Change the embedding model: make the vectors of the new model, and later delete the vectors of the old model.

Vectors are stored per model. While the new vectors are made, processes with the old model still search the old vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from nexus_tasks.cognition import embed
from nexus_tasks.deployment import Deployment
from nexus_tasks.storage import embeddings, namespaces

AT_ONCE = 5_000  # the most vectors that one transaction deletes


def reembed(deployment: Deployment, namespace: str | None, note: Callable[[int, int], None]) -> tuple[int, int, str]:
    """Make the missing vectors of the configured embedding model, in one namespace or in all.

    Args:
        note: called with the number of memories that are done, and the number of all memories to embed.

    Returns:
        The number of vectors made, the number of texts that the embedder refused, and the model's name.

    Raises:
        NotFound: there is no such namespace.
        JobError: the embedder does not answer. The vectors that were already made stay.
    """
    with deployment.database.transaction() as tx:
        chosen = list(namespaces.every(tx)) if namespace is None else [namespaces.get(tx, namespace)]
        left = {known.id: embeddings.count_to_embed(tx, known.id, deployment.embedder.name) for known in chosen}
    filled = refused = 0
    for known in chosen:
        before = filled

        def at(done: int, before: int = before) -> None:
            note(before + done, sum(left.values()))

        made, not_taken = embed.fill_missing_vectors(deployment.database, deployment.embedder, known.id, at)
        filled, refused = filled + made, refused + not_taken
    note(filled, max(sum(left.values()), filled))
    return filled, refused, deployment.embedder.name


def drop_others(deployment: Deployment, namespace: str | None) -> tuple[int, int]:
    """Delete the vectors of all models except the configured model, in one namespace or in all.

    The vectors of memories that have none of the configured model stay: an embedder with wrong settings may have
    refused every text.

    Returns:
        The number of deleted vectors, and the number of vectors of other models that stay.

    Raises:
        NotFound: there is no such namespace.
    """
    dropped = 0
    while True:
        with deployment.database.transaction() as tx:
            chosen = None if namespace is None else namespaces.get(tx, namespace).id
            gone = embeddings.delete_other_models(tx, deployment.embedder.name, AT_ONCE, namespace_id=chosen)
        dropped += gone
        if gone < AT_ONCE:
            break
    with deployment.database.transaction() as tx:
        return dropped, embeddings.count_of_other_models(tx, deployment.embedder.name, namespace_id=chosen)

"""Export a namespace's topics and facts as Markdown files in a folder, and import topics from such a folder.

A topic is a file of knowledge that the job ``extract_session`` keeps.
"""

from __future__ import annotations

from pathlib import Path

from nexus_tasks.cognition.extraction import markdown
from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage import memories, namespaces, topics
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.types import MarkdownExport, MarkdownImport, check_namespace

MOST_FACTS = 100_000  # facts.md contains at most this many facts, the newest
LARGEST = 1_000_000  # bytes; the import refuses a larger file of a topic


def export(deployment: Deployment, namespace: str, folder: Path) -> MarkdownExport:
    """Write ``MEMORY.md``, a file per topic and ``facts.md`` to ``folder``.

    A missing folder is made. Existing files with these names are replaced. Other files stay.

    Raises:
        NotFound: there is no such namespace.
        InvalidInput: the folder cannot be written.
    """
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        every = topics.every(tx, known.id)
        wanted = Filter(namespace_id=known.id, levels=("explicit",))
        facts = memories.matching(tx, wanted, MOST_FACTS)
        files = {topic.filename: markdown.file(topic) for topic in every}
        files |= {markdown.INDEX: markdown.index(every), markdown.FACTS: markdown.facts(facts)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error.strerror}.") from error
    return MarkdownExport(namespace=namespace, folder=str(folder), topics=len(every), facts=len(facts))


def import_(deployment: Deployment, namespace: str, folder: Path) -> MarkdownImport:
    """Read the topics from ``folder`` into a namespace. Either all topics are stored or none.

    A stored topic whose file has the same content stays as it is. ``MEMORY.md``, ``facts.md`` and files that do not end
    in ``.md`` are skipped.

    Raises:
        InvalidInput: a file is not a topic, or cannot be read.
    """
    check_namespace(namespace)
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".md" and not _ours(path.name))
        drafts = [markdown.read(path.name, _text(path)) for path in paths]
    except OSError as error:
        raise InvalidInput(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    with deployment.database.transaction() as tx:
        known = namespaces.ensure(tx, namespace)
        changed = topics.overwrite(tx, known.id, drafts)
    return MarkdownImport(namespace=namespace, folder=str(folder), topics=len(drafts), changed=changed)


def _ours(name: str) -> bool:
    return name.casefold() in (markdown.INDEX.casefold(), markdown.FACTS)


def _text(path: Path) -> str:
    if checked(path.name) is not None and (not path.is_file() or path.is_symlink()):
        raise InvalidInput(f"{path} is not a plain file.")
    if path.stat().st_size > LARGEST:
        raise InvalidInput(f"{path} has more than {LARGEST:,} bytes.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8.") from None

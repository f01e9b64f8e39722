"""Export a namespace's topics and facts as Markdown files in a folder, and import topics from such a folder.

A topic is a file of knowledge that the job ``extract_session`` keeps.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from nexus_tasks import files, limits
from nexus_tasks.cognition.extraction import markdown
from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NexusError
from nexus_tasks.services.writing_files import mode_of
from nexus_tasks.storage import audit, memories, namespaces, topics
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.types import MarkdownExport, MarkdownImport, check_count, check_namespace

MOST_FACTS = 100_000  # facts.md contains at most this many facts, the newest
EXPORTED = ".nexus-export.json"  # the checksums of the files that an export has written

_CHECKSUMS = TypeAdapter(dict[str, dict[str, list[str]]])


def export(deployment: Deployment, namespace: str, folder: Path) -> MarkdownExport:
    """Write ``MEMORY.md``, a file per topic and ``facts.md`` to ``folder``.

    A missing folder is made. The files of an earlier export are replaced. The file ``.nexus-export.json`` has their
    checksums, so that this function replaces no file that somebody else has written or changed, and follows no link.

    Raises:
        NotFound: there is no such namespace.
        InvalidInput: a file of somebody else has one of the names, or the folder cannot be written. Nothing was
            written in the first case.
    """
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        every = topics.every(tx, known.id)
        wanted = Filter(namespace_id=known.id, levels=("explicit",))
        facts = memories.matching(tx, wanted, MOST_FACTS)
        texts = {topic.filename: markdown.file(topic) for topic in every}
        audit.record(tx, "export.begin", namespace)
        texts |= {markdown.INDEX: markdown.index(every), markdown.FACTS: markdown.facts(facts)}
    try:
        _write(folder, {name: text.encode() for name, text in texts.items()})
    except NexusError:
        raise
    except (OSError, ValueError) as error:  # a ValueError: the name has a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{str(folder)!r} cannot be written: {reason}.") from error
    with deployment.database.transaction() as tx:
        audit.record(tx, "export.end", namespace, {"topics": len(every), "memories": len(facts)})
    return MarkdownExport(namespace=namespace, folder=str(folder), topics=len(every), facts=len(facts))


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():
        raise InvalidInput(f"{folder} is a symbolic link.", remedy="Name the folder that the link points to.")
    written = _checksums(folder / EXPORTED)
    foreign = [name for name, content in contents.items() if not _may_replace(folder / name, content, written)]
    if foreign:
        raise InvalidInput(
            f"{folder} has files that `nexus export` did not write: {', '.join(sorted(foreign))}.",
            remedy="Choose another folder, or move these files away. Nothing was written.",
        )
    # The checksums are written first. A crash then leaves files that the next export still knows as its own.
    sums = {name: sorted({*written.get(name, ()), _checksum(content)}) for name, content in contents.items()}
    files.write_atomic(str(folder / EXPORTED), _as_json(written | sums), mode=0o644)
    for name, content in contents.items():
        files.write_atomic(str(folder / name), content, mode=0o644)
    sums = {name: [_checksum(content)] for name, content in contents.items()}
    files.write_atomic(str(folder / EXPORTED), _as_json(written | sums), mode=0o644)


def _may_replace(path: Path, content: bytes, written: Mapping[str, Sequence[str]]) -> bool:
    mode = mode_of(path)
    if mode is None:
        return True
    if not stat.S_ISREG(mode):
        return False
    found = path.read_bytes()
    return found == content or _checksum(found) in written.get(path.name, ())


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _as_json(checksums: Mapping[str, Sequence[str]]) -> bytes:
    return (json.dumps({"files": checksums}, indent=2, sort_keys=True) + "\n").encode()


def _checksums(path: Path) -> dict[str, list[str]]:
    """The checksums that an earlier export has written: the file's name → the SHA-256 of each of its versions."""
    mode = mode_of(path)
    if mode is None:
        return {}
    try:
        if not stat.S_ISREG(mode):
            raise ValueError
        return _CHECKSUMS.validate_json(path.read_bytes())["files"]
    except (ValueError, KeyError):
        raise InvalidInput(
            f"{path} is not a list of exported files.", remedy="Choose another folder, or move this file away."
        ) from None


def import_(deployment: Deployment, namespace: str, folder: Path) -> MarkdownImport:
    """Read the topics from ``folder`` into a namespace. Either all topics are stored or none.

    A stored topic whose file has the same content stays as it is. ``MEMORY.md``, ``facts.md`` and files that do not end
    in ``.md`` are skipped.

    Raises:
        InvalidInput: a file is not a topic, or cannot be read.
    """
    check_namespace(namespace)
    try:
        every = (path for path in folder.iterdir() if path.suffix.lower() == ".md" and not _ours(path.name))
        paths = sorted(islice(every, limits.TOPIC_FILES + 1))
        check_count(str(folder), paths, limits.TOPIC_FILES)
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
    if path.stat().st_size > limits.TOPIC_BYTES:
        raise InvalidInput(f"{path} has more than {limits.TOPIC_BYTES:,} bytes.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8.") from None

"""Export a namespace's topics and facts as Markdown files in a folder, and import topics from such a folder.

A topic is a file of knowledge that the job ``extract_session`` keeps.
"""

from __future__ import annotations

import hashlib
import json
import logging
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from nexus_tasks import files, limits
from nexus_tasks.cognition.extraction import markdown
from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NexusError
from nexus_tasks.services import correcting
from nexus_tasks.services.writing_files import kind_of, mode_of
from nexus_tasks.storage import audit, memories, namespaces, topics
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.memories import FactLine
from nexus_tasks.storage.models import Topic
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.storage.topics import TopicDraft
from nexus_tasks.transcripts.scrubbing import scrub
from nexus_tasks.types import MarkdownExport, MarkdownImport, check_count, check_namespace, to_utc

log = logging.getLogger(__name__)

MOST_FACTS = 100_000  # facts.md contains at most this many facts, the newest
EXPORTED = ".nexus-export.json"  # what an export has written, see _Exported


def export(deployment: Deployment, namespace: str, folder: Path) -> MarkdownExport:
    """Write ``MEMORY.md``, a file per topic and ``facts.md`` to ``folder``.

    A missing folder is made. What this function writes stands between two marks. Text outside of them, and files
    without them, were written by hand and stay: a file gets the marked section at its end. The file
    ``.nexus-export.json`` has checksums of the sections, so that this function replaces no section that somebody has
    edited and that :func:`import_` has not read. It follows no link.

    When an exported topic is gone, its section is deleted, and so is its file if nothing else is in it. A file that
    somebody has edited stays, and the result names it.

    Raises:
        NotFound: there is no such namespace.
        InvalidInput: a section has edits that were not read, a name belongs to no regular file, or the folder cannot
            be written. Nothing was written in the first two cases.
    """
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        every = [topic for topic in topics.every(tx, known.id) if _has_safe_name(topic)]
        facts = memories.fact_lines(tx, known.id, MOST_FACTS)
        wanted = {topic.filename: _File(markdown.head(topic), topic.content) for topic in every}
        audit.record(tx, "export.begin", namespace)
    wanted[markdown.INDEX] = _File("", markdown.index(every))
    wanted[markdown.FACTS] = _File("", markdown.facts(facts))
    try:
        removed, kept = _write(folder, known, wanted, {topic.filename: topic.revision for topic in every})
    except NexusError:
        raise
    except (OSError, ValueError) as error:  # a ValueError: the name has a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{str(folder)!r} cannot be written: {reason}.") from error
    with deployment.database.transaction() as tx:
        audit.record(tx, "export.end", namespace, {"topics": len(every), "memories": len(facts)})
    return MarkdownExport(
        namespace=namespace, folder=str(folder), topics=len(every), facts=len(facts), removed=removed, kept=kept
    )


def _has_safe_name(topic: Topic) -> bool:
    """Whether the topic's file stays in the folder. An earlier release took any name from an imported export."""
    if checked(topic.filename) == topic.filename:
        return True
    log.warning("The topic %.200r is left out, because its name is no safe name of a file.", topic.filename)
    return False


class _File(NamedTuple):
    """What an export has to say in a file: the frontmatter of a new file, and the content of the marked section."""

    head: str
    body: str


@dataclass(frozen=True)
class _Exported:
    """The content of ``.nexus-export.json``.

    ``files`` has the checksums of the files and sections that exports have written and imports have read. ``revisions``
    has the revision of each topic when it was exported from ``namespace``, also of a topic that is gone while its
    file stays. ``made`` is the time when the namespace was made: another database may have a namespace of the same
    name. An earlier release wrote no ``made``.
    """

    files: dict[str, list[str]] = field(default_factory=dict)
    namespace: str = ""
    revisions: dict[str, int] = field(default_factory=dict)
    made: str = ""

    def is_of(self, namespace: NamespaceSettings | None) -> bool:
        """Whether the folder was exported from this namespace. A move to another cell does not change that."""
        return namespace is not None and self.namespace == namespace.name and self.made in ("", _made(namespace))


def _made(namespace: NamespaceSettings) -> str:
    return "" if namespace.created_at is None else to_utc(namespace.created_at).isoformat()


_EXPORTED = TypeAdapter(_Exported)


def _write(
    folder: Path, namespace: NamespaceSettings, wanted: Mapping[str, _File], revisions: dict[str, int]
) -> tuple[int, tuple[str, ...]]:
    """Write the files. Returns the number of deleted files, and the names of edited files of topics that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():
        raise InvalidInput(f"{folder} is a symbolic link.", remedy="Name the folder that the link points to.")
    exported = _read_exported(folder / EXPORTED)
    known = exported.files
    texts = {name: _text_to_write(folder / name, file, known.get(name, ())) for name, file in wanted.items()}
    edited = sorted(name for name, text in texts.items() if text is None)
    if edited:
        raise _has_edits(folder, edited, "Nothing was written.")
    sums = {name: _checksums_of(name, text, wanted[name]) for name, text in texts.items() if text is not None}
    # The checksums are written first. A crash then leaves files that the next export still knows as its own.
    both = {name: sorted({*known.get(name, ()), *sums[name]}) for name in sums}
    _save(folder, replace(exported, files=known | both))
    for name, file in wanted.items():
        text = _text_to_write(folder / name, file, known.get(name, ()))  # somebody may have edited the file meanwhile
        if text is None:
            edited.append(name)
        else:
            sums[name] = _checksums_of(name, text, file)
            files.write_atomic(str(folder / name), text.encode(), mode=0o644, keep_mode=True)
    if edited:
        raise _has_edits(folder, edited, "The other files were written.")
    gone = set[str]()
    if exported.is_of(namespace):  # a name may have been written by hand, so it may lead out of the folder
        gone = {name for name in exported.revisions if name not in wanted and checked(name) == name}
    left = {name: _remove(folder / name, known.get(name, ())) for name in sorted(gone)}
    kept = tuple(name for name, state in left.items() if state in ("edited", "written"))
    tracked = {name: exported.revisions[name] for name, state in left.items() if state == "edited"}
    sums = {name: found for name, found in (known | sums).items() if name not in gone or name in tracked}
    _save(folder, _Exported(sums, namespace.name, revisions | tracked, _made(namespace)))
    return sum(state == "deleted" for state in left.values()), kept


def _has_edits(folder: Path, names: Sequence[str], done: str) -> InvalidInput:
    return InvalidInput(
        f"{folder} has edits that were not read: {', '.join(names)}.",
        remedy=f"{done} Read them with `nexus import --markdown DIR --namespace NS`, and try again. An import reads no"
        f" edits of {markdown.INDEX}, and of {markdown.FACTS} no new lines and no lines of facts that hold no longer:"
        " move these out of the section between the marks, or delete the section.",
    )


def _remove(path: Path, known: Sequence[str]) -> Literal["absent", "deleted", "edited", "written"]:
    """Delete what exports have written to the file of a topic that is gone. Returns what has become of the file.

    ``edited``: the section has edits, or the file cannot be read. It stays as it is. ``written``: the section is
    deleted, and what a person has written around it stays.
    """
    mode = mode_of(path)
    if mode is None:
        return "absent"
    try:
        if not stat.S_ISREG(mode):
            return "edited"
        text = _decoded(path)
        before, section, after = markdown.parts(str(path), text)
    except InvalidInput:
        return "edited"
    if section is None:
        return "written"
    whole = _checksum(text) in known
    if not whole and _checksum(section) not in known:
        return "edited"
    rest = f"{before}{after}"
    if whole or not rest.strip():
        path.unlink()
        return "deleted"
    files.write_atomic(str(path), rest.encode(), mode=0o644, keep_mode=True)
    return "written"


def _text_to_write(path: Path, wanted: _File, known: Sequence[str]) -> str | None:
    """The new text of a file, or ``None`` when its section has edits that no import has read."""
    fresh = wanted.head + markdown.section(wanted.body)
    mode = mode_of(path)
    if mode is None:
        return fresh
    if not stat.S_ISREG(mode):
        raise InvalidInput(f"{path} is {kind_of(mode)}, not a regular file.", remedy="Choose another folder.")
    found = _decoded(path)
    if found == fresh or _checksum(found) in known:  # nobody has changed the file since an export wrote it
        return fresh
    _, section, _ = markdown.parts(str(path), found)
    text = markdown.merged(str(path), found, wanted.body)
    return text if section is None or text == found or _checksum(section) in known else None


def _checksums_of(name: str, text: str, wanted: _File) -> list[str]:
    _, section, _ = markdown.parts(name, text)
    sums = {_checksum(section or "")}
    if text == wanted.head + markdown.section(wanted.body):  # the export has written the whole file
        sums.add(_checksum(text))
    return sorted(sums)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _save(folder: Path, exported: _Exported) -> None:
    document = json.dumps(asdict(exported), indent=2, sort_keys=True) + "\n"
    files.write_atomic(str(folder / EXPORTED), document.encode(), mode=0o644)


def _read_exported(path: Path) -> _Exported:
    mode = mode_of(path)
    if mode is None:
        return _Exported()
    try:
        if not stat.S_ISREG(mode):
            raise ValueError
        return _EXPORTED.validate_json(_bytes_of(path, limits.FILE_BYTES))
    except ValueError:
        raise InvalidInput(
            f"{path} is not a list of exported files.", remedy="Choose another folder, or move this file away."
        ) from None


def import_(deployment: Deployment, namespace: str, folder: Path) -> MarkdownImport:
    """Read the topics from ``folder`` into a namespace, and edits of its exported facts. All topics are stored or none.

    A topic's file is read whole: the section that an export wrote, and what was written by hand around it. In a folder
    that was exported from this namespace, files that nobody has changed are skipped. When a topic has changed since the
    export, the file's new lines are added to it. Otherwise the file replaces the topic. A line of ``facts.md`` with
    another wording revises its fact. When the fact holds no longer, the result names it. ``MEMORY.md``, new and deleted
    lines of ``facts.md``, and files that do not end in ``.md`` are not read.

    Raises:
        InvalidInput: a file is not a topic, or cannot be read.
    """
    check_namespace(namespace)
    with deployment.database.transaction() as tx:
        found_here = namespaces.find(tx, namespace)
    try:
        every = (path for path in folder.iterdir() if path.suffix.lower() == ".md" and not _ours(path.name))
        paths = sorted(islice(every, limits.TOPIC_FILES + 1))
        check_count(str(folder), paths, limits.TOPIC_FILES)
        _check_sizes(folder, paths)
        exported = _read_exported(folder / EXPORTED)
        own = exported.is_of(found_here)
        texts = {path.name: _text(path) for path in paths}
        facts = folder / markdown.FACTS
        facts_text = _text(facts) if own and facts.is_file() else ""
    except OSError as error:
        raise InvalidInput(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    drafts = [markdown.read(name, text) for name, text in texts.items()]
    revisions = exported.revisions if own else {}
    same = {name for name, text in texts.items() if own and _checksum(text) in exported.files.get(name, ())}
    edited = {filename for filename in revisions if filename not in same}
    clean = list(map(_scrubbed, drafts))  # before the transaction: megabytes take longer than one may be idle
    with deployment.database.transaction() as tx:
        known = namespaces.ensure(tx, namespace)
        seen = {name: revisions[name] for name in edited}
        if known.scrub:
            drafts = clean
        changed = topics.overwrite(tx, known.id, [one for one in drafts if one.filename not in same], seen)
        written = {one.filename: one for one in drafts}
        now = {
            topic.filename: revisions[topic.filename] if _has_more(topic, written, revisions) else topic.revision
            for topic in topics.every(tx, known.id)
        }
        found = memories.fact_lines(tx, known.id, MOST_FACTS) if facts_text else []
        ended = _ended(tx, known.id, facts_text, found)
    revised = _revise(deployment, namespace, markdown.edited_facts(facts_text, found), found)
    if own:
        if not (ended or markdown.has_new_lines(facts_text)):  # an export must not replace lines that were not read
            texts[markdown.FACTS] = facts_text
        _note_read(folder, exported, texts, now)
    return MarkdownImport(
        namespace=namespace, folder=str(folder), topics=len(drafts), changed=changed, revised=revised, ended=ended
    )


def _ended(tx: Transaction, namespace_id: int, text: str, found: Sequence[FactLine]) -> tuple[int, ...]:
    """The ids of facts that hold no longer, and of which the text has a wording that no fact has."""
    ids = markdown.cited_facts(text) - {fact.id for fact in found}
    told = {(fact.subject, " ".join(fact.content.split())) for fact in found}
    edited = markdown.edited_facts(text, memories.fact_lines_of(tx, namespace_id, ids) if ids else [])
    return tuple(sorted(fact.id for fact, content in edited if (fact.subject, content) not in told))


def _has_more(topic: Topic, written: Mapping[str, TopicDraft], revisions: Mapping[str, int]) -> bool:
    """Whether a topic has lines that its exported file lacks, so that the file must not replace the topic later."""
    name = topic.filename
    return name in revisions and name in written and not topics.holds(topic, written[name].content)


def _revise(
    deployment: Deployment, namespace: str, edited: Sequence[tuple[FactLine, str]], found: Sequence[FactLine]
) -> int:
    """Revise each edited fact, also for the other observers that have it. Returns the number of edited lines."""
    for fact, content in edited:
        for same in found:
            if (same.subject, same.content) == (fact.subject, fact.content):
                correcting.revise(
                    deployment, namespace, same.id, content, author="user", expires_at=None, erase_expired=False
                )
    return len(edited)


def _note_read(folder: Path, exported: _Exported, texts: Mapping[str, str], revisions: dict[str, int]) -> None:
    """Save the checksums of the sections that were read, so that the next export may replace them."""
    sums = dict(exported.files)
    for name, text in texts.items():
        _, section, _ = markdown.parts(name, text)
        if section is not None:
            sums[name] = sorted({*sums.get(name, ()), _checksum(section)})
    try:
        _save(folder, replace(exported, files=sums, revisions=revisions))
    except OSError:
        return  # the folder is only readable; a later export refuses until the edits are read again


def _scrubbed(draft: TopicDraft) -> TopicDraft:
    return replace(draft, name=scrub(draft.name), description=scrub(draft.description), content=scrub(draft.content))


def _ours(name: str) -> bool:
    return name.casefold() in (markdown.INDEX.casefold(), markdown.FACTS)


def _check_sizes(folder: Path, paths: Sequence[Path]) -> None:
    """Check the sizes of the topics' files before one of them is read: all texts are in memory at the same time."""
    if sum(path.lstat().st_size for path in paths) > limits.FILE_BYTES:
        raise InvalidInput(
            f"The topics in {folder} have more than {limits.FILE_BYTES:,} bytes together.",
            remedy="Import them in several folders.",
        )


def _text(path: Path) -> str:
    if not path.is_file() or path.is_symlink():  # a pipe or a device may never end
        raise InvalidInput(f"{path} is not a plain file.")
    return _decoded(path, limits.FILE_BYTES if path.name == markdown.FACTS else limits.TOPIC_BYTES)


def _bytes_of(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise InvalidInput(f"{path} has more than {most:,} bytes.")
    return found


def _decoded(path: Path, most: int | None = None) -> str:
    try:
        return _bytes_of(path, most or limits.FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8.") from None

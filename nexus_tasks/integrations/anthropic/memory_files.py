"""What each command of the memory tool does to the topics and facts of a namespace.

A file is a topic. ``/memories/facts.md`` lists the facts: replacing text in a line revises its fact, and inserting a
line remembers it. Every command answers with the text that Anthropic's documentation gives for it, or raises a
``NexusError``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from nexus_tasks.client import Nexus
from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.errors import Conflict, InvalidInput, NotFound
from nexus_tasks.integrations.anthropic.memory_paths import FACTS, ROOT, parts, path_of, topic_of
from nexus_tasks.types import MemoryInfo, TopicDetails, TopicInfo
from nexus_tasks.types.hidden_characters import strip_hidden

MOST_FACTS = 200  # the newest facts that facts.md lists
_PAGE = 1_000
_TRIES = 5  # of an edit, while other writers change the same topic
_FACT = re.compile(r"- \[m(\d{1,18})\] (.*)")


class MemoryFiles:
    """The files of one namespace."""

    def __init__(self, nexus: Nexus, namespace: str, author: str, observer: str | None) -> None:
        self.nexus, self.namespace, self.author, self.observer = nexus, namespace, author, observer

    # --- reading ------------------------------------------------------------------------------------------------------
    def view(self, path: str, view_range: Sequence[int] | None = None) -> str:
        """A file with numbered lines, or the files of a folder."""
        if path == FACTS:
            return _numbered(path, self._facts_text(), view_range)
        if parts(path) and (found := self._file(path)):
            return _numbered(path, found.content, view_range)
        inside = self._inside(path)
        if not inside and parts(path):
            raise _missing(path)
        lines = [(topic.characters, path_of(topic.filename)) for topic in inside]
        if not parts(path) and (facts := self._facts_text()):
            lines.append((len(facts), FACTS))
        lines.sort(key=lambda line: line[1])
        listed = [(sum(size for size, _ in lines), path), *lines]
        return "\n".join(
            (
                f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:",
                *(f"{size / 1_000:.1f}K\t{name}" for size, name in listed),
            )
        )

    # --- writing ------------------------------------------------------------------------------------------------------
    def create(self, path: str, text: str) -> str:
        """Make a file."""
        if path == FACTS or self._inside(path):
            raise InvalidInput(f"File {path} already exists.", remedy="Edit it, or choose another path.")
        try:
            self._write(path, text, 0)
        except Conflict:
            raise Conflict(f"File {path} already exists.", remedy="Edit it, or choose another path.") from None
        return f"File created successfully at: {path}"

    def replace(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs once."""

        def edited(content: str) -> str:
            found = [at for at in range(len(content)) if content.startswith(old, at)] if old else []
            if not found:
                raise InvalidInput(
                    f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.",
                    remedy="View the file and give the text as it is there.",
                )
            if len(found) > 1:
                lines = ", ".join(str(content.count("\n", 0, at) + 1) for at in found)
                raise InvalidInput(
                    f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {lines}.",
                    remedy="Please ensure it is unique.",
                )
            return content[: found[0]] + new + content[found[0] + len(old) :]

        if path == FACTS:
            return self._revise(edited)
        before, after = self._edit(path, edited)
        at = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
        line = after.count("\n", 0, at)
        shown = list(enumerate(after.split("\n"), start=1))[max(0, line - 2) : line + 3]
        return "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n" + (
            "\n".join(f"{number:>6}\t{text}" for number, text in shown)
        )

    def insert(self, path: str, line: int, text: str) -> str:
        """Insert a text behind a line; 0 is the beginning of the file."""
        if path == FACTS:
            said = [one.strip().removeprefix("- ") for one in text.splitlines() if one.strip()]
            new = 0
            for one in said:
                receipt = self.nexus.remember(self.namespace, one, author=self.author)
                new += receipt.stored + receipt.buffered
            before = f" {len(said) - new} were remembered already." if new < len(said) else ""
            return f"{new} facts will be remembered. They show in {path} when they are derived.{before}"

        def edited(content: str) -> str:
            lines = content.removesuffix("\n").split("\n")
            if not 0 <= line <= len(lines):
                raise InvalidInput(
                    f"Invalid `insert_line` parameter: {line}.",
                    remedy=f"It should be within the range [0, {len(lines)}].",
                )
            return "\n".join([*lines[:line], text.removesuffix("\n"), *lines[line:]]) + "\n"

        self._edit(path, edited)
        return f"The file {path} has been edited."

    def delete(self, path: str) -> str:
        """Delete a file, or a folder with its files."""
        if not parts(path) or path == FACTS:
            raise InvalidInput(f"{path} cannot be deleted.", remedy="Delete single files or folders.")
        found = self._file(path)
        names = [found.filename] if found else [topic.filename for topic in self._inside(path)]
        if not names:
            raise _missing(path)
        for name in names:
            with suppress(NotFound):  # another writer has just deleted it
                self.nexus.delete_topic(self.namespace, name)
        return f"Successfully deleted {path}"

    def rename(self, old: str, new: str) -> str:
        """Rename a file, or a folder with its files."""
        if not parts(old) or not parts(new) or FACTS in (old, new):
            raise InvalidInput(f"{old} cannot be renamed to {new}.", remedy="Rename single files or folders.")
        if self._find(new) or self._inside(new):
            raise Conflict(f"The destination {new} already exists.", remedy="Choose another path.")
        if found := self._file(old):
            self.nexus.rename_topic(self.namespace, found.filename, topic_of(new))
            return f"Successfully renamed {old} to {new}"
        inside = self._inside(old)
        if not inside:
            raise _missing(old)
        folder = f"{ROOT}/{'/'.join(parts(old))}/"
        moved = {topic.filename: path_of(topic.filename).removeprefix(folder) for topic in inside}
        moved = {name: topic_of(f"{new.rstrip('/')}/{below}") for name, below in moved.items()}
        if not all(map(checked, moved.values())):  # before the first is renamed
            raise InvalidInput(f"{old} cannot be renamed to {new}: the path of a file would be too long.")
        for name, new_name in moved.items():
            with suppress(NotFound):  # another writer has just deleted it
                self.nexus.rename_topic(self.namespace, name, new_name)
        return f"Successfully renamed {old} to {new}"

    def clear(self) -> str:
        """Delete every file. The facts stay."""
        for topic in self._inside(ROOT):
            with suppress(NotFound):
                self.nexus.delete_topic(self.namespace, topic.filename)
        return "All memory cleared"

    # --- topics -------------------------------------------------------------------------------------------------------
    def _find(self, path: str) -> TopicDetails | None:
        """The topic of a file, without characters that hide text from people but not from a model."""
        try:
            found = self.nexus.topic(self.namespace, topic_of(path))
        except NotFound:
            return None
        return replace(found, content=strip_hidden(found.content))

    def _file(self, path: str) -> TopicDetails | None:
        """The topic of a file. A path without ``.md`` is that of the folder, if there is a folder of that name."""
        found = self._find(path)
        if found and not path.lower().rstrip("/").endswith(".md") and self._inside(path):
            return None
        return found

    def _inside(self, path: str) -> list[TopicInfo]:
        """The topics in a folder and its folders."""
        folder = "".join(f"/{name}" for name in parts(path))
        found, offset = list[TopicInfo](), 0
        while True:
            try:
                page = self.nexus.topics(self.namespace, limit=_PAGE, offset=offset)
            except NotFound:  # the namespace is made by the first write
                return []
            found += [topic for topic in page if path_of(topic.filename).startswith(f"{ROOT}{folder}/")]
            offset += _PAGE
            if len(page) < _PAGE:
                return found

    def _write(self, path: str, text: str, revision: int) -> None:
        self.nexus.write_topic(self.namespace, topic_of(path), text, author=self.author, revision=revision)

    def _edit(self, path: str, edited: Callable[[str], str]) -> tuple[str, str]:
        """Apply an edit to a file. Returns the content before and after it."""
        for _ in range(_TRIES):
            found = self._find(path)
            if found is None:
                raise _missing(path)
            after = edited(found.content)
            try:
                self._write(path, after, found.revision)
            except Conflict:
                continue  # another writer was quicker: apply the edit to the content as it is now
            return found.content, after
        raise Conflict(f"{path} is being changed by others.")

    # --- facts --------------------------------------------------------------------------------------------------------
    def _facts(self) -> list[MemoryInfo]:
        """The newest facts, newest first. Two observers may have facts with one text."""
        try:
            return self.nexus.memories(self.namespace, levels=["explicit"], observer=self.observer, limit=MOST_FACTS)
        except NotFound:
            return []

    def _facts_text(self) -> str:
        return "".join(f"- [m{fact.id}] {_line(fact)}\n" for fact in _once(self._facts()).values())

    def _revise(self, edited: Callable[[str], str]) -> str:
        """Revise the facts whose lines an edit changes."""
        everything = self._facts()
        facts = _once(everything)
        lines = [_FACT.fullmatch(line) for line in edited(self._facts_text()).splitlines()]
        said = {int(line[1]): line[2].strip() for line in lines if line}
        if None in lines or list(said) != list(facts) or len(said) != len(lines):
            raise InvalidInput(
                f"Lines of {FACTS} can only be reworded, one fact each.",
                remedy=f"Insert a line into {FACTS} to remember a new fact.",
            )
        changed = [fact for fact in facts.values() if said[fact.id] != _line(fact)]
        for fact in changed:
            for same in everything:  # each observer has a fact of its own
                if (same.subject, same.content) == (fact.subject, fact.content):
                    self.nexus.revise(self.namespace, same.id, said[fact.id], author=self.author)
        return f"{len(changed)} facts have been revised."


def _line(fact: MemoryInfo) -> str:
    """The text of a fact on one line, without hidden characters. An imported fact may have several lines."""
    return " ".join(strip_hidden(fact.content).split())


def _once(found: Sequence[MemoryInfo]) -> dict[int, MemoryInfo]:
    """Facts by their ids, oldest first. Of the facts with one text, as two observers have them, the oldest is there."""
    once = {(fact.subject, fact.content): fact for fact in found}
    return {fact.id: fact for fact in reversed(once.values())}


def _numbered(path: str, content: str, view_range: Sequence[int] | None) -> str:
    lines = list(enumerate(content.split("\n"), start=1))
    if view_range and len(view_range) == 2:
        first, last = view_range
        lines = lines[max(first, 1) - 1 : len(lines) if last == -1 else max(last, 0)]
    return f"Here's the content of {path} with line numbers:\n" + "\n".join(f"{n:>6}\t{line}" for n, line in lines)


def _missing(path: str) -> NotFound:
    return NotFound(f"The path {path} does not exist.", remedy="Please provide a valid path.")

"""Read the records of an export of another memory system: pages of an API, lists, or lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nexus_tasks.integrations.importers.conversation import file_error, kind_of, parsed

_FIRST_CHARACTERS = 2_000  # of a file, whose format is to be detected


def records(path: Path, text: str, pages: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a file, each with its place for errors.

    A file is one JSON document, or one document per line. A document is a record, a page (an object with the list
    ``pages``), or a list of records or pages.

    Raises:
        InvalidInput: the file is not JSON, or something in it is no object. The error names the line.
    """
    for where, document in _documents(path, text):
        yield from _of(path, where, document, pages)


def begins_with(text: str, *keys: str) -> bool:
    """Whether the first 2,000 characters of a file have each of ``keys``, and it begins as JSON does."""
    first = text.lstrip()[:_FIRST_CHARACTERS]
    return first[:1] in ("{", "[") and all(f'"{key}"' in first for key in keys)


def _documents(path: Path, text: str) -> Iterator[tuple[str, object]]:
    # splitlines() would also split at U+2028, which a JSON text may contain.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if len(lines) == 1 or not _is_json(lines[0][1]):
        try:
            yield "", parsed(text)
        except ValueError as error:
            raise file_error(path, "", f"not JSON: {error}") from None
        return
    for number, line in lines:
        try:
            document = parsed(line)
        except ValueError as error:
            raise file_error(path, f"line {number}", f"not JSON: {error}") from None
        yield f"line {number}", document


def _is_json(line: str) -> bool:
    try:
        parsed(line)
    except ValueError:
        return False
    return True


def _of(path: Path, where: str, document: object, pages: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a document. Pages hold no pages, so this goes two lists deep at most."""
    entries = document if isinstance(document, list) else [document]
    for index, entry in enumerate(entries):
        at = f"{where}[{index}]" if isinstance(document, list) else where
        listed = entry.get(pages) if isinstance(entry, dict) else None
        if isinstance(listed, list):
            for number, one in enumerate(listed):
                place = f"{at}{'.' if at else ''}{pages}[{number}]"
                yield place, _object(path, place, one)
        else:
            yield at, _object(path, at, entry)


def _object(path: Path, where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise file_error(path, where, f"a record must be an object, not {kind_of(value)}")
    return value

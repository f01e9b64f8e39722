"""Read the records of an export of another memory system: pages of an API, lists, or lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from nexus_tasks.integrations.importers.conversation import file_error, kind_of, parsed
from nexus_tasks.integrations.importers.source import Source

_FIRST_CHARACTERS = 2_000  # of a file, whose format is to be detected


def records(source: Source, pages: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a file, each with its place for errors.

    A file is one JSON document, or one document per line. A document is a record, a page (an object with the list
    ``pages``), or a list of records or pages.

    Raises:
        InvalidInput: the file is not JSON, or something in it is no object. The error names the line.
    """
    for where, document in _documents(source):
        yield from _of(source.path, where, document, pages)


def begins_with(source: Source, *keys: str) -> bool:
    """Whether the first 2,000 characters of a file have each of ``keys``, and it begins as JSON does."""
    first = source.beginning(_FIRST_CHARACTERS)
    return first[:1] in ("{", "[") and all(f'"{key}"' in first for key in keys)


def _documents(source: Source) -> Iterator[tuple[str, object]]:
    two = [line for _, line in islice(source.lines(), 2)]
    if len(two) == 1 or not is_json(two[0]):
        try:
            yield "", parsed(source.text())
        except ValueError as error:
            raise file_error(source.path, "", f"not JSON: {error}") from None
        return
    for number, line in source.lines():
        try:
            document = parsed(line)
        except ValueError as error:
            raise file_error(source.path, f"line {number}", f"not JSON: {error}") from None
        yield f"line {number}", document


def is_json(line: str) -> bool:
    """Whether a line is a JSON document."""
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

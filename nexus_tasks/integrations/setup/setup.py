"""Write the pieces and take them back.

The record, ``NEXUS_HOME/init.json``, is written before the first piece. So after a crash between any two writes,
``undo`` knows every piece, and a second run finishes. Each file is replaced at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from nexus_tasks import files
from nexus_tasks.buffer import default_home
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.integrations.setup.pieces import Piece, drop, find, put

State = Literal["added", "changed", "unchanged", "kept", "removed", "gone", "left"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What happens to one piece.

    ``kept``: the file has another value that ``nexus init`` did not write. ``left``: somebody changed the value since.
    """

    piece: Piece
    state: State
    before: str  # the file's text, empty for a missing file
    after: str  # empty: the file is deleted


def plan(pieces: Sequence[Piece]) -> list[Step]:
    """Read the files, and say what to write. Nothing is written.

    Raises:
        ConfigurationError: a file cannot be read, or cannot take the piece.
    """
    record = {_id(one): one for one in _record()}
    steps = []
    for piece in pieces:
        text = _read(piece.path)
        present = find(piece, text)
        written = record.get(_id(_entry(piece)), {}).get("values", [])
        if present == piece.value:
            steps.append(Step(piece=piece, state="unchanged", before=text, after=text))
        elif present is None or present in written:
            state: State = "added" if present is None else "changed"
            steps.append(Step(piece=piece, state=state, before=text, after=put(piece, text, piece.value)))
        else:
            steps.append(Step(piece=piece, state="kept", before=text, after=text))
    return steps


def write(steps: Sequence[Step]) -> None:
    """Write the planned pieces.

    Raises:
        ConfigurationError: a file cannot be written. A second run goes on there.
    """
    todo = [step for step in steps if step.state in ("added", "changed")]
    if not todo:
        return
    record = {_id(one): one for one in _record()}
    for step in todo:
        entry = _entry(step.piece)
        former = record.get(_id(entry), {})
        entry["values"] = [*former.get("values", []), step.piece.value]
        entry["made_file"] = former.get("made_file", False) or not step.piece.path.exists()
        entry["made_folders"] = former.get("made_folders", []) or _missing_folders(step.piece.path)
        entry["original"] = _original(step, former, made_file=entry["made_file"])
        record[_id(entry)] = entry
    _save(list(record.values()))
    for step in todo:
        _replace(step.piece.path, step.after, step.piece.mode)
    for step in todo:
        record[_id(_entry(step.piece))]["values"] = [step.piece.value]
    _save(list(record.values()))


def plan_undo() -> list[Step]:
    """Read the files, and say what to take back. Nothing is written.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    steps = []
    for entry in reversed(_record()):
        piece = _piece(entry)
        text = _read(piece.path)
        present = find(piece, text)
        original = entry.get("original")
        rest = _without(piece, text, entry["made_file"]) if present is not None and present in entry["values"] else None
        if rest is not None and original and _hash(text) == original["written"]:
            rest = original["text"]
        if present is None:
            steps.append(Step(piece=piece, state="gone", before=text, after=text))
        elif rest is None:
            steps.append(Step(piece=piece, state="left", before=text, after=text))
        else:
            steps.append(Step(piece=piece, state="removed", before=text, after=rest))
    return steps


def _without(piece: Piece, text: str, made_file: bool) -> str | None:
    """The file's text without the piece. ``None``: the piece cannot be cut out."""
    rest = drop(piece, text)
    if rest is None or rest.strip() or made_file:
        return rest
    return "{}\n" if piece.kind in ("json", "hooks") else rest


def _original(step: Step, former: dict[str, Any], *, made_file: bool) -> dict[str, str] | None:
    """The file's text before the first run, and a hash of the text that is written now.

    It is kept only for a file whose first text cannot be made again from the written one, such as JSON on one line.
    """
    original = former.get("original")
    if former:
        first = original["text"] if original and original["written"] == _hash(step.before) else None
    else:
        first = step.before
    if first is None or _without(step.piece, step.after, made_file) == first:
        return None
    return {"text": first, "written": _hash(step.after)}


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def undo(steps: Sequence[Step]) -> None:
    """Take back the planned pieces, and forget them. A file and a folder that this made and that are empty go too.

    Raises:
        ConfigurationError: a file cannot be written. A second run goes on there.
    """
    record = {_id(one): one for one in _record()}
    for step in steps:
        entry, path = record[_id(_entry(step.piece))], step.piece.path
        if step.state == "removed":
            if step.after or not entry["made_file"]:
                _replace(path, step.after, step.piece.mode)
            else:
                try:
                    path.resolve().unlink(missing_ok=True)
                except OSError as error:
                    raise _unwritable(path, error) from None
    _record_path().unlink(missing_ok=True)
    for entry in record.values():
        for folder in reversed(entry["made_folders"]):
            try:
                os.rmdir(folder)
            except OSError:  # it is not empty, or it is gone
                break


def _record_path() -> Path:
    return Path(default_home()) / "init.json"


def _record() -> list[dict[str, Any]]:
    path = _record_path()
    text = _read(path)
    if not text:
        return []
    try:
        found = json.loads(text)["pieces"]
        for one in found:
            _piece(one), list(one["values"]), bool(one["made_file"]), list(one["made_folders"])
        return list(found)
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(
            f"{path} is not a record of `nexus init`.", remedy="Move the file away. Pieces that it named stay."
        ) from None


def _save(entries: list[dict[str, Any]]) -> None:
    _replace(_record_path(), json.dumps({"pieces": entries}, indent=2, ensure_ascii=False) + "\n", 0o600)


def _entry(piece: Piece) -> dict[str, Any]:
    fields = asdict(piece) | {"path": os.fspath(piece.path), "key": list(piece.key)}
    del fields["value"]
    return fields


def _piece(entry: dict[str, Any]) -> Piece:
    fields = {name: entry[name] for name in ("kind", "what", "mode")}
    return Piece(**fields, path=Path(entry["path"]), key=tuple(entry["key"]))


def _id(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["path"], entry["kind"]


def _missing_folders(path: Path) -> list[str]:
    return [os.fspath(one) for one in reversed(path.parents) if not one.exists()]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigurationError(
            f"{path} cannot be read: {why}.", remedy="Correct the file. No file was changed."
        ) from None


def _replace(path: Path, text: str, mode: int) -> None:
    # ``path`` may be a link, for example into a folder of dotfiles. The link stays.
    real = path.resolve()
    try:
        files.make_folder(os.fspath(real.parent))
        files.write_atomic(os.fspath(real), text.encode(), durable=True, mode=mode, keep_mode=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written: {error.strerror}.", remedy="Give yourself access, and run the command again."
    )

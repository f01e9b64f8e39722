"""The buffer's folder, the names of the files in it, and the name of the deployment that entries belong to.

The name of a session's folder is a hash of the agent and the session, because a session key may hold any character. A
hash of the deployment's name follows. Folders of the release 0.1.0 do not have it; every deployment stores
their entries.
"""

from __future__ import annotations

import os
import re
import sys
from hashlib import sha256

from nexus_tasks.errors import ConfigurationError, NexusError

SESSIONS, QUARANTINE = "sessions", "quarantine"
EMBEDDED = "embedded"  # the name of a deployment without a NEXUS_DATABASE_URL
FROM_THE_ROOT = "Write the whole path, from the root. A relative one would name another place in each folder."
_SEQ_DIGITS = 12
_USER_AND_PASSWORD = re.compile(r"[^:/@?]*(?::[^@]*)?@")


def default_home() -> str:
    """The value of ``Settings.home``, computed without importing pydantic.

    The value is ``NEXUS_HOME``, or the user's data folder when ``NEXUS_HOME`` is not set.

    Raises:
        ConfigurationError: ``NEXUS_HOME`` is relative. It would name a folder of the project in which a command or hook
            is started. Another person may have written the settings in that folder.
    """
    if home := os.environ.get("NEXUS_HOME"):
        home = os.path.expanduser(home)
        if not os.path.isabs(home):
            raise ConfigurationError(f"NEXUS_HOME is {home!r:.200}, which is not absolute.", remedy=FROM_THE_ROOT)
        return home
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/nexus-tasks")
    data = os.environ.get("XDG_DATA_HOME", "").strip()
    if not os.path.isabs(data):  # as the specification of this variable says
        data = os.path.expanduser("~/.local/share")
    return os.path.join(data, "nexus-tasks")


def home_of_deployment() -> str:
    """The home of the deployment that the environment describes: that of the cell in ``NEXUS_CELL``, if it has one.

    Raises:
        ConfigurationError: the home is relative.
    """
    if not (home := _setting_of_cell("home")):
        return default_home()
    home = os.path.expanduser(home)
    if not os.path.isabs(home):
        raise ConfigurationError(f"The cell's home is {home!r:.200}, which is not absolute.", remedy=FROM_THE_ROOT)
    return home


def default_folder() -> str:
    """The buffer's folder under :func:`home_of_deployment`."""
    return os.path.join(home_of_deployment(), "buffer")


def default_deployment_name() -> str:
    """The name of the deployment that the environment describes, by ``NEXUS_CELL`` or by ``NEXUS_DATABASE_URL``."""
    return deployment_name(_setting_of_cell("database_url") or os.environ.get("NEXUS_DATABASE_URL"))


def _setting_of_cell(name: str) -> str | None:
    """A setting of the cell that ``NEXUS_CELL`` names. ``None``: it has none, or the file of cells cannot be read.

    In the latter case an entry is still kept, and `nexus buffer flush --of` stores it. A file with a relative path is
    not read, because the project in whose folder the hook runs could contain it.
    """
    cell, file = os.environ.get("NEXUS_CELL"), os.environ.get("NEXUS_CELLS")
    if not cell or not file or not (os.path.isabs(file) or file.lstrip().startswith("{")):
        return None
    from nexus_tasks.cells_file import read_cells  # few processes need it, and it takes time

    try:
        found = read_cells(file).cells.get(cell, {}).get(name)
    except NexusError:
        return None
    return found if isinstance(found, str) else None


def deployment_name(database_url: str | None) -> str:
    """The name of a deployment: the host, port and name of its database, or ``embedded``.

    The user and the password are left out. The name is shown, and a changed password does not change it. This function
    does not use ``urllib``, because importing it would slow down the hook's start.
    """
    if not database_url:
        return EMBEDDED
    rest = database_url.partition("://")[2]
    credentials = _USER_AND_PASSWORD.match(rest)
    place, _, query = rest[credentials.end() if credentials else 0 :].partition("?")
    options = dict(one.partition("=")[::2] for one in query.split("&"))
    host, _, database = place.partition("/")
    host = host or options.get("host", "").replace("%2F", "/").replace("%2f", "/")
    port = options.get("port", "")
    address = f"{host}:{port}" if port else host
    return f"{address.removesuffix(':5432').lower()}/{database}"


def session_folder_name(agent: str, session: str, deployment: str = "") -> str:
    """The name of a session's folder: hashes, because a session key may have any character and any length.

    Without ``deployment`` the name is that of a folder that belongs to every deployment.
    """
    name = sha256(f"{len(agent)}:{agent}{session}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{name}-{_deployment_hash(deployment)}" if deployment else name


def belongs_to(folder_name: str, deployment: str) -> bool:
    """Whether a deployment stores the entries in a session's folder. Every deployment stores those without a name."""
    _, named, its = folder_name.partition("-")
    return not named or its == _deployment_hash(deployment)


def _deployment_hash(deployment: str) -> str:
    return sha256(deployment.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def waiting_name(deployment: str) -> str:
    """The name of the lock of the process that waits until it may store a deployment's entries."""
    return f"waiting-{_deployment_hash(deployment)}.lock"


def open_name(first_seq: int) -> str:
    """The name of the open segment. Entries are appended to the open segment."""
    return f"{first_seq:0{_SEQ_DIGITS}d}.open"


def sealed_name(first_seq: int, last_seq: int) -> str:
    """The name of a sealed segment. A sealed segment never changes again."""
    return f"{first_seq:0{_SEQ_DIGITS}d}-{last_seq:0{_SEQ_DIGITS}d}.sealed"


def sealed_range(name: str) -> tuple[int, int]:
    """Read the first and the last ``entry_seq`` from the name of a sealed segment.

    For a file with another name, such as a copy that a program for synchronising folders makes, the range is empty:
    (1, 0).
    """
    first, _, last = name.removesuffix(".sealed").partition("-")
    return (int(first), int(last)) if first.isdecimal() and last.isdecimal() else (1, 0)


def is_open(name: str) -> bool:
    """Whether a file is an open segment by its name, and no copy that another program has named."""
    first, _, ending = name.partition(".")
    return ending == "open" and first.isdecimal()

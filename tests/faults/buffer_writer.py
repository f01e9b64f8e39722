"""A producer that appends to the session buffer and reports each append that returned: ``FOLDER POLICY NAME COUNT``."""

from __future__ import annotations

import os
import sys

from nexus_tasks.buffer import SessionBuffer


def main() -> None:
    """Append COUNT entries to one session that all writers share, and to one of its own."""
    folder, policy, name, count = sys.argv[1:]
    buffer = SessionBuffer(folder, fsync=policy)  # type: ignore[arg-type]
    for n in range(int(count)):
        text = f"{name} says {n} {'and so on ' * (n % 40)}".strip()
        buffer.append("acme", "shared" if n % 2 else name.partition("-")[0], {"content": text})
        os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    main()

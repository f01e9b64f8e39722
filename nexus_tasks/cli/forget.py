"""``nexus forget``: erase memories, and print a receipt."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json, Namespace
from nexus_tasks.cli.output import emit
from nexus_tasks.types import ForgetReceipt


def forget(
    namespace: Namespace,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="ID", min=1, help="One memory: 17, as in [m17].")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="KEY", help="One session.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything that the namespace remembers.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="On a terminal, do not ask first.")] = False,
    json: Json = False,
) -> None:
    """Erase a memory, a session or everything, and all memories that rest only on it. This cannot be undone."""
    if (memory is not None) + (session is not None) + everything != 1:
        raise typer.BadParameter("give one of --memory, --session and --all")
    what = f"memory {memory}" if memory is not None else f"session {session}" if session else "everything"
    if not yes and not json and sys.stdin.isatty():
        typer.confirm(f"Erase {what} of {namespace}, and what was derived from it?", abort=True)
    receipt = connect().forget(namespace, memory_id=memory, session_key=session, everything=everything)
    if json:
        emit(receipt)
    else:
        _print_receipt(receipt)


def _print_receipt(receipt: ForgetReceipt) -> None:
    rows = receipt.deleted
    one = len(receipt.ids) == 1
    print(f"{len(receipt.ids)} {'memory' if one else 'memories'} erased, {sum(rows.values())} rows in all:")
    for table, count in rows.items():
        print(f"  {table:<20} {count:>8,}")
    if receipt.requeued:
        print(f"{len(receipt.requeued)} jobs make facts and digests again from the remaining messages.")
    if receipt.not_rewritten:
        print(f"Too busy to be rewritten on disk: {', '.join(receipt.not_rewritten)}. The next erasure rewrites them.")

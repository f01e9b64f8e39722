"""``nexus db``: check and upgrade the database's schema, and change the embedding model."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect, one_deployment, start_logging
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit
from nexus_tasks.errors import SchemaOutdated

app = typer.Typer(help="Check and upgrade the database's schema; change the embedding model.", no_args_is_help=True)


@app.command()
def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing: say what would be done, what is locked and for how long.")
    ] = False,
    json: Json = False,
) -> None:
    """Upgrade the database to the schema that this version needs. Several machines may run this command at once."""
    found, needed, url = _versions()
    if found != needed:
        _refuse_newer(found, needed)
    if check:
        from nexus_tasks.cli.upgrade_check import report
        from nexus_tasks.storage.upgrade_plan import plan

        report(plan(url), json=json)
        return
    from nexus_tasks.storage.schema import upgrade

    upgrade(url)  # without a missing migration too: the role for row-level security may have been made meanwhile
    if json:
        emit({"ok": True, "from": found, "to": needed})
    elif found == needed:
        print(f"The database is up to date (schema {needed}).")
    else:
        print(f"The database was upgraded from {f'schema {found}' if found else 'empty'} to schema {needed}.")


@app.command()
def check(json: Json = False) -> None:
    """Check that the database has the schema that this version needs. With another schema the exit code is 1."""
    found, needed, _ = _versions()
    if found != needed:
        _refuse_newer(found, needed)
        raise SchemaOutdated(f"The database is {f'at schema {found}' if found else 'empty'}; {needed} is needed.")
    if json:
        emit({"ok": True, "found": found, "needed": needed})
    else:
        print(f"The database is up to date (schema {needed}).")


@app.command()
def accept(json: Json = False) -> None:
    """Let the claims (job records) in Redis belong to this database from now on.

    Run this command after this database has replaced another one. Workers refuse to start when the claims belong to
    another database, because jobs would not find their namespaces and would end without effect.
    """
    client = connect()
    deployment = one_deployment(client)
    from nexus_tasks.services.limits import refuse_limited
    from nexus_tasks.storage import identity

    refuse_limited(client.limit, "db accept")
    with deployment.database.transaction() as tx:
        own = identity.of_database(tx)
    deployment.claims.accept_identity(own)
    if json:
        emit({"ok": True, "database": own})
    else:
        print(f"The claims under the prefix {deployment.settings.key_prefix!r} belong to this database now.")


@app.command()
def reembed(
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NS", help="Only this namespace; default: every namespace.")
    ] = None,
    drop_others: Annotated[
        bool, typer.Option("--drop-others", help="Afterwards delete the vectors of other models that are replaced.")
    ] = False,
    json: Json = False,
) -> None:
    """Make the missing vectors of the model in NEXUS_EMBEDDER; the vectors of other models stay.

    To change the model, first run this command with the new settings, while the workers still use the old settings.
    Then restart the workers with the new settings. Last, run this command again with --drop-others.
    """
    from nexus_tasks.cli.progress import meter

    client = connect()
    deployment = one_deployment(client)
    from nexus_tasks.services.limits import allowed_namespace, refuse_limited
    from nexus_tasks.services.reembedding import drop_others as drop
    from nexus_tasks.services.reembedding import reembed as fill

    namespace = allowed_namespace(client.limit, namespace, "db reembed")
    if drop_others:
        refuse_limited(client.limit, "--drop-others")
    with meter("embedded") as progress:
        filled, refused, model = fill(deployment, namespace, progress.at)
    dropped, kept = drop(deployment, namespace) if drop_others else (0, 0)
    if json:
        emit({"model": model, "embedded": filled, "refused": refused, "dropped": dropped, "kept": kept})
        return
    found = words.count(filled, "memory", "memories")
    refusals = f" {words.count(refused, 'was', 'were')} refused by it." if refused else ""
    print(f"{found} embedded by {model}.{refusals}")
    if drop_others:
        print(f"{dropped:,} vectors of other models deleted.")
        if kept:
            print(f"{kept:,} stay, because their memories have no vector of {model}.")


def _versions() -> tuple[str | None, str, str]:
    start_logging()
    from nexus_tasks.endpoints import endpoints_of
    from nexus_tasks.settings import load_settings, refuse_several
    from nexus_tasks.storage.schema import versions

    settings = load_settings()
    refuse_several(settings)  # else the servers of this machine's home folder would be meant, which are no cell
    url = endpoints_of(settings).database_url
    return *versions(url), url


def _refuse_newer(found: str | None, needed: str) -> None:
    # A newer revision has a higher number. All numbers have four digits, so texts compare like numbers.
    if found is not None and found > needed:
        raise SchemaOutdated(
            f"The database is at schema {found}, this version knows {needed}.",
            remedy="Upgrade nexus-tasks; the database was used with a newer version.",
        )

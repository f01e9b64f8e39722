"""Row-level security: what a tenant sees and changes without any filter, and through every public method."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from sqlalchemy import Table, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from nexus_tasks import Message, Nexus, Settings, storage
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NexusError, NotAllowed, NotFound
from nexus_tasks.services.transfer import TransferReceipt
from nexus_tasks.storage import dead_letters, namespaces, schema, tenancy
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.models import Base
from nexus_tasks.storage.searching import scope
from tests.databases import administer
from tests.integration.inline import say, work
from tests.sandbox import Sandbox

MINE, THEIRS = "acme", "others"
TABLES = [pytest.param(table, id=table.name) for table in Base.metadata.sorted_tables]
OF_CELLS = {"cells", "placements"}  # tables without a row here, of which a tenant sees none
READ_ONLY = {"database_identity", "audit_log", *OF_CELLS}
SHARED = {"database_identity", *OF_CELLS}  # the first has one row, which says nothing of a namespace


@pytest.fixture
def both(here: Sandbox) -> Sandbox:
    """Two namespaces, each with rows in every table."""
    for name in (MINE, THEIRS):
        say(f"The secret of {name} is tea.", f"I visited {name} in May.", namespace=name, session="chat", end=True)
    work()
    namespace_ids = dict(here.sql("SELECT name, id FROM namespaces"))
    with here.deployment.database.transaction() as tx:
        tx.execute(text("SET LOCAL session_replication_role = replica"))  # without foreign keys and triggers
        for table in Base.metadata.sorted_tables:
            for name in (MINE, THEIRS):
                if table.name not in SHARED | {"namespaces"}:
                    fill(tx, table, name, namespace_ids[name])
    return here


SAMPLES = {"BIGINT": 7, "INTEGER": 7, "SMALLINT": 7, "FLOAT": 0.5, "NUMERIC(14, 8)": 1, "BOOLEAN": False, "TEXT": "x"}
ALLOWED = {
    "state": {"dreams": "open", "batch_requests": "queued", "extractions": "idle"},
    "type": {"topics": "user"},
    "role": {"evidence": "reinforces"},
    "level": {"memories": "explicit"},
    "scopes": {"tokens": ["read"]},
}


def fill(tx: Any, table: Table, name: str, namespace_id: int) -> None:
    """Insert a row of a namespace with any values that the table takes."""
    values: dict[str, Any] = {}
    for column in table.columns:
        kind = str(column.type)
        if column.name == "namespace_id":
            values[column.name] = namespace_id
        elif column.name == "namespace":
            values[column.name] = name
        elif column.computed or column.identity or column.server_default is not None or column.nullable:
            continue
        elif column.name in ALLOWED and table.name in ALLOWED[column.name]:
            values[column.name] = ALLOWED[column.name][table.name]
        elif kind.startswith("VECTOR"):
            values[column.name] = [0.0] * 3
        elif kind.startswith(("JSON",)):
            values[column.name] = {}
        elif "[]" in kind or kind == "ARRAY":
            values[column.name] = []
        elif kind.startswith(("DATE", "TIME")):
            values[column.name] = text("now()")
        elif kind == "TEXT":
            values[column.name] = f"of {name}"
        else:
            values[column.name] = SAMPLES[kind] + 1_000_000 * namespace_id
            if kind in ("SMALLINT", "BOOLEAN", "NUMERIC(14, 8)"):
                values[column.name] = SAMPLES[kind]
    tx.execute(table.insert().values(values))


def rows_of(tx: Any, statement: str) -> int | None:
    """How many rows a statement changes, which is taken back; ``None`` when the tenant has no right to it."""
    before = tx.begin_nested()
    try:
        found: int = tx.execute(text(statement)).rowcount
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", "") != "42501":
            raise
        return None
    finally:
        before.rollback()
    return found


@contextmanager
def refused(database: Database) -> Iterator[Any]:
    """A tenant's transaction that a policy refuses."""
    with pytest.raises((NexusError, DBAPIError), match="row-level security"):  # noqa: SIM117
        with tenancy.limited_to([MINE]), database.transaction() as tx:
            yield tx


def owner(table: Table) -> str:
    """The SQL of the name of a row's namespace."""
    if "namespace_id" in table.c:
        return f"(SELECT name FROM namespaces WHERE id = {table.name}.namespace_id)"
    return {"namespaces": "name", "audit_log": "namespace"}[table.name]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_a_rule(here: Sandbox, table: Table) -> None:
    """A table that is added without a rule fails here, and a tenant has no right on it."""
    assert tenancy.rule(table), f"say in tenancy.py which rows of {table.name} a tenant sees"
    assert here.sql(
        "SELECT relrowsecurity, (SELECT count(*) FROM pg_policy WHERE polrelid = pg_class.oid) FROM pg_class"
        f" WHERE oid = '{table.name}'::regclass"
    ) == [(True, 2)]


def test_no_table_of_the_database_is_unknown_to_the_models(here: Sandbox) -> None:
    readable = here.sql(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'v', 'm', 'p', 'f')"
        " AND relnamespace = 'public'::regnamespace"
        " AND has_table_privilege('nexus_tenant', oid, 'SELECT, INSERT, UPDATE, DELETE')"
    )
    assert {name for (name,) in readable} == set(Base.metadata.tables)


def test_a_tenant_sees_and_changes_its_own_rows_when_every_filter_is_left_out(both: Sandbox) -> None:
    database = both.deployment.database
    for table in Base.metadata.sorted_tables:
        name = table.name
        total = both.sql(f"SELECT count(*) FROM {name}")[0][0]
        with tenancy.limited_to([MINE]), database.transaction() as tx:
            if name in SHARED:
                assert tx.scalar(text(f"SELECT count(*) FROM {name}")) == total
            else:
                seen = tx.execute(text(f"SELECT {owner(table)} AS name, count(*) FROM {name} GROUP BY 1")).all()
                assert [one for one, _ in seen] == [MINE], f"{name}: {seen}"
                assert 0 < seen[0][1] < total, name
        column = next(column.name for column in table.columns if not column.identity and not column.computed)
        for statement in (f'UPDATE {name} SET "{column}" = "{column}"', f"DELETE FROM {name}"):
            with tenancy.limited_to([MINE]), database.transaction() as tx:
                changed = rows_of(tx, statement)
                if changed is None:
                    assert name in READ_ONLY | {"namespaces"}, statement
                    continue
                assert changed < total, statement
        assert both.sql(f"SELECT count(*) FROM {name}") == [(total,)], name


def test_a_tenant_stores_no_row_in_another_namespace_and_moves_none_there(both: Sandbox) -> None:
    database = both.deployment.database
    [(theirs,)] = both.sql("SELECT id FROM namespaces WHERE name = :name", name=THEIRS)
    for table in Base.metadata.sorted_tables:
        if table.name in SHARED | {"namespaces"}:
            continue
        with refused(database) as tx:
            fill(tx, table, THEIRS, theirs)
        if table.name == "audit_log":
            continue
        with refused(database) as tx:
            tx.execute(text(f"UPDATE {table.name} SET namespace_id = {theirs}"))
    for statement in ("INSERT INTO namespaces (name) VALUES ('third')", "UPDATE namespaces SET name = 'third'"):
        with refused(database) as tx:
            tx.execute(text(statement))


def test_without_a_namespace_nothing_is_seen_and_a_connection_keeps_nothing(both: Sandbox) -> None:
    database = Database(both.database_url, pool_size=1)
    count = text("SELECT count(*) FROM memories")
    whoami = text("SELECT current_user || coalesce(nullif(current_setting('nexus.namespaces', true), ''), '')")
    try:
        for _ in range(2):  # the same connection each time
            with tenancy.limited_to([]), database.transaction() as tx:
                assert tx.scalar(count) == 0
            with tenancy.limited_to([MINE]), database.reading() as tx:
                mine = tx.scalar(count)
                assert tx.scalar(whoami) == f"nexus_tenant{MINE}"
            with tenancy.limited_to([MINE, THEIRS]), database.transaction() as tx:
                assert tx.scalar(count) == 2 * mine
            with tenancy.limited_to([MINE]), tenancy.limited_to([THEIRS, MINE]), database.transaction() as tx:
                assert tx.scalar(count) == mine
            with database.transaction() as tx:
                assert tx.scalar(count) == 2 * mine
                assert not str(tx.scalar(whoami)).startswith("nexus_tenant")
            with pytest.raises(ZeroDivisionError), tenancy.limited_to([MINE]), database.transaction():
                raise ZeroDivisionError
            with database.reading() as tx:
                assert tx.scalar(count) == 2 * mine
    finally:
        database.dispose()


def test_the_storage_functions_without_the_filter_of_the_application(both: Sandbox) -> None:
    """The namespace's id, which every statement filters by, is that of another namespace: as if it were not checked."""
    nexus = Nexus(namespaces=[MINE])
    with tenancy.limited_to([MINE]), both.deployment.database.transaction() as tx:
        assert namespaces.find(tx, THEIRS) is None
        assert [one.name for one in namespaces.every(tx)] == [MINE]
    # What finds a namespace by its name is replaced by what finds any: each call gets rows of others, if there are any.
    [(theirs,)] = both.sql("SELECT id FROM namespaces WHERE name = :name", name=THEIRS)
    with both.deployment.database.transaction() as tx:
        known = namespaces.get(tx, THEIRS)
    assert known.id == theirs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(namespaces, "get", lambda _tx, _name: known)
        assert list(nexus.search(MINE, "secret of others")) == []
        assert nexus.memories(MINE) == []
        assert nexus.sessions(MINE) == []
        assert nexus.topics(MINE) == []
        assert nexus.tokens(MINE) == []
        assert nexus.context(MINE, query="secret").text == ""
        [(memory,)] = both.sql("SELECT min(id) FROM memories WHERE namespace_id = :id", id=theirs)
        for call in (
            lambda: nexus.memory(MINE, memory),
            lambda: nexus.forget(MINE, memory_id=memory),
            lambda: nexus.session(MINE, "chat"),
        ):
            with pytest.raises(NotFound):
                call()
        assert nexus.forget(MINE, everything=True).ids == ()
    assert len(Nexus().memories(THEIRS)) > 1


METHODS = sorted(
    name
    for name, method in vars(Nexus).items()
    if inspect.isfunction(method) and not name.startswith("_") and not inspect.iscoroutinefunction(method)
)


@pytest.mark.parametrize("method", METHODS)
def test_no_public_method_of_a_limited_client_reaches_another_namespace(
    both: Sandbox, method: str, tmp_path: Any
) -> None:
    nexus = Nexus(namespaces=[MINE])
    parameters = inspect.signature(getattr(Nexus, method)).parameters
    values: dict[str, Any] = {
        "session_key": "chat",
        "messages": [Message(content="I was here.")],
        "query": "secret",
        "question": "secret",
        "content": "A secret.",
        "subject": "ann",
        "path": tmp_path / "file",
        "folder": tmp_path,
        "text": "I was here.",
        "name": "mine",
        "token_id": "x",
        "webhook_id": "x",
        "url": "https://example.org",
        "filename": "x.md",
        "new_filename": "y.md",
        "reflection": 1,
        "memory_id": both.sql("SELECT max(id) FROM memories")[0][0],
        "job_id": both.sql(
            "SELECT job_id FROM job_runs JOIN namespaces n ON n.id = namespace_id WHERE name = 'others'"
        )[0][0],
    }
    given = {
        name: values[name] for name, one in list(parameters.items())[1:] if one.default is one.empty and name in values
    }
    before = {name: both.sql(f"SELECT count(*) FROM {name}") for name in Base.metadata.tables}
    if "namespace" in parameters:
        with pytest.raises(NotAllowed, match="acme only"):
            getattr(nexus, method)(namespace=THEIRS, **given)
    elif method == "namespaces":
        assert [one.namespace for one in nexus.namespaces()] == [MINE]
    else:
        with pytest.raises((NotAllowed, NotFound)):
            getattr(nexus, method)(**given)
    assert {name: both.sql(f"SELECT count(*) FROM {name}") for name in Base.metadata.tables} == before


def test_a_limited_client_does_all_its_work(here: Sandbox, tmp_path: Any) -> None:
    """Every write of a tenant passes the policies, triggers and foreign keys."""
    nexus = Nexus(namespaces=[MINE])
    say("Something of others.", namespace=THEIRS)
    assert nexus.ingest(MINE, "chat", [Message(content="I moved to Lisbon.", author="ann", id="m1")]).stored == 1
    nexus.remember(MINE, "Deploys happen on Tuesdays.", author="ops")
    nexus.end_session(MINE, "chat")
    work()
    assert "Lisbon" in nexus.search(MINE, "where does ann live?")[0].content
    assert nexus.context(MINE, session_key="chat", observe=True).text
    assert nexus.set_namespace(MINE, concurrency=3).concurrency == 3
    assert nexus.status().namespaces[0].namespace == MINE  # the only namespace need not be named
    assert nexus.jobs()
    assert {one.namespace for one in nexus.jobs()} == {MINE}
    token = nexus.create_token(MINE, "agent")
    nexus.rotate_token(MINE, token.id)
    nexus.revoke_token(MINE, token.id)
    nexus.dream(MINE)
    receipt: TransferReceipt = nexus.export(MINE, tmp_path / "file")
    assert receipt.total
    [raw] = nexus.memories(MINE, session_key="chat", levels=["raw"])
    assert raw.id in nexus.forget(MINE, memory_id=raw.id).ids
    nexus.forget(MINE, everything=True)
    nexus.import_(MINE, tmp_path / "file")
    assert {one.namespace for one in nexus.audit()} == {MINE}
    assert Nexus(namespaces=["new"]).create_namespace("new").namespace == "new"
    assert len(Nexus().memories(THEIRS)) == 1
    assert here.sql("SELECT count(*) FROM memories WHERE namespace_id NOT IN (SELECT id FROM namespaces)") == [(0,)]


def test_the_setting_limits_every_client_and_an_argument_narrows_it(deploy: Callable[..., Sandbox]) -> None:
    deploy(NEXUS_NAMESPACES="acme, others")
    assert Nexus().limit == ("acme", "others")
    assert Nexus(namespaces=["acme", "third"]).limit == ("acme",)
    Nexus().create_namespace("acme")
    with pytest.raises(NotAllowed, match="acme, others only"):
        Nexus().create_namespace("third")
    with pytest.raises(NotAllowed, match="needs a namespace"):
        Nexus().status()
    with pytest.raises(InvalidInput):
        Nexus(namespaces="acme")
    with pytest.raises(ValueError, match="no name"):
        Settings(namespaces="a b")  # type: ignore[arg-type]


# --- every function of the storage ------------------------------------------------------------------------------------
def functions() -> dict[str, Callable[..., Any]]:
    """Every public function of ``nexus_tasks.storage`` that works in a transaction, by its name."""
    found = dict[str, Callable[..., Any]]()
    for module in pkgutil.walk_packages(storage.__path__, f"{storage.__name__}."):
        if "migrations" in module.name:
            continue
        for name, one in vars(importlib.import_module(module.name)).items():
            own = inspect.isfunction(one) and one.__module__ == module.name and not name.startswith("_")
            if own and next(iter(inspect.signature(one).parameters), "") == "tx":
                found[f"{module.name.removeprefix(storage.__name__)[1:]}.{name}"] = one
    return found


class Theirs:
    """Arguments that name rows of the other tenant, as a function would get them whose caller checked no namespace."""

    def __init__(self, here: Sandbox) -> None:
        [(self.namespace_id,)] = here.sql("SELECT id FROM namespaces WHERE name = :name", name=THEIRS)
        self.here = here
        self.rows: dict[type[Any], Any] = {}
        with Session(here.deployment.database.engine, expire_on_commit=False) as session:
            for mapper in Base.registry.mappers:
                model = mapper.class_
                if "namespace_id" in model.__table__.c:
                    self.rows[model] = session.scalars(
                        select(model).where(model.namespace_id == self.namespace_id).limit(1)
                    ).one()
            session.expunge_all()
        [chat] = here.sql(
            "SELECT id FROM sessions WHERE namespace_id = :id AND session_key = 'chat'", id=self.namespace_id
        )
        memories = here.sql("SELECT id FROM memories WHERE namespace_id = :id ORDER BY id", id=self.namespace_id)
        self.memories = [memory for (memory,) in memories]
        self.ids = {"namespace_id": self.namespace_id, "session_id": chat[0], "memory_id": self.memories[0]}

    def arguments(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Its required arguments.

        Raises:
            LookupError: no value is known for a parameter.
        """
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        return {one.name: self._value(one.name, hints[one.name]) for one in parameters if one.default is one.empty}

    def _value(self, name: str, hint: Any) -> Any:
        origin, inner = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self._value(name, next(one for one in inner if one is not NoneType))
        if hint in self.rows:
            return self.rows[hint]
        if hint is dead_letters.Filter:
            return dead_letters.Filter(status="dead")
        if hint is scope.Filter:
            return scope.Filter(namespace_id=self.namespace_id)
        if hint is Message:
            return Message(content=f"By {MINE}.")
        if origin is Literal:
            return inner[0]
        if inner and isinstance(origin, type) and issubclass(origin, Mapping):
            return {} if inner[1] is Any else {self._value(name, inner[0]): self._value(name, inner[1])}
        if inner and isinstance(origin, type) and issubclass(origin, Collection) and origin is not tuple:
            if inner[0] is int:
                return [self.namespace_id] if name == "namespace_ids" else self.memories
            return [self._value(name, inner[0])]
        if hint is int:
            row = next(
                (row for model, row in self.rows.items() if f"{model.__tablename__}" in (f"{name[:-3]}s",)), None
            )
            fallback = getattr(row, "id", 1_000_000) if name.endswith("_id") else 0 if name == "after" else 1_000_000
            return self.ids.get(name, fallback)
        texts = {"session_key": "chat", "observer": "assistant", "namespace": THEIRS, "name": THEIRS}
        simple = {str: texts.get(name, f"of {THEIRS}"), bool: False, float: 1.0, Decimal: Decimal(1)}
        simple |= {datetime: datetime.now(UTC), timedelta: timedelta(), tuple: (1, 1)}
        return simple[hint]


def everything_of(here: Sandbox, name: str) -> dict[str, list[str]]:
    """Every row of a namespace, as text."""
    found = {}
    for table in Base.metadata.sorted_tables:
        if table.name not in SHARED:
            query = f"SELECT {table.name}::text FROM {table.name} WHERE {owner(table)} = :name"
            found[table.name] = sorted(row for (row,) in here.sql(query, name=name))
    return found


def test_no_function_of_the_storage_reads_or_writes_rows_of_another_tenant(both: Sandbox) -> None:
    """Each function gets the ids and rows of the other tenant, as if its filter were left out or wrong."""
    theirs, database = Theirs(both), both.deployment.database
    before = everything_of(both, THEIRS)
    tried, left_out, leaking = dict[str, bool](), list[str](), list[str]()
    for name, function in functions().items():
        try:
            values = theirs.arguments(function)
        except (LookupError, TypeError):
            left_out.append(name)
            continue
        tried[name] = False
        with suppress(Exception), Session(database.engine) as session, session.begin():
            if THEIRS in repr_of(function(session, **values)):  # an owner, with no policy: the test can see a leak
                tried[name] = True
            session.rollback()
        with suppress(Exception), tenancy.limited_to([MINE]), database.transaction() as tx:
            if repr_of(function(tx, **values)).count(THEIRS) > repr_of(values).count(THEIRS):  # more than it was given
                leaking.append(name)
    assert leaking == []
    assert everything_of(both, THEIRS) == before
    assert len(tried) >= 150, f"no arguments are known for {left_out}"
    assert sum(tried.values()) >= 15, tried


def test_the_filters_alone_keep_ids_of_another_tenant_out(both: Sandbox) -> None:
    """As an owner, without policies: a function with a namespace's id checks that its other ids belong to it."""
    theirs, database = Theirs(both), both.deployment.database
    [(mine,)] = both.sql("SELECT id FROM namespaces WHERE name = :name", name=MINE)
    theirs.namespace_id = theirs.ids["namespace_id"] = mine
    tried, leaking = list[str](), list[str]()
    for name, function in functions().items():
        one = inspect.signature(function).parameters.get("namespace_id")
        if one is None or one.default is not one.empty:
            continue
        try:
            values = {key: as_mine(value) for key, value in theirs.arguments(function).items()}
        except (LookupError, TypeError):
            continue
        tried.append(name)
        with suppress(Exception), Session(database.engine) as session, session.begin():
            if repr_of(function(session, **values)).count(THEIRS) > repr_of(values).count(THEIRS):
                leaking.append(name)
            session.rollback()
    assert leaking == []
    assert len(tried) >= 60, tried


def as_mine(value: Any) -> Any:
    """A name or names without that of the other tenant, so that what is found with it is not what was given."""
    if isinstance(value, str):
        return value.replace(THEIRS, MINE)
    return [as_mine(one) for one in value] if isinstance(value, list) else value


BY_ID = {"memory_id": "memories", "reflection": "reflections", "token_id": "tokens", "webhook_id": "webhooks"}


@pytest.mark.parametrize(
    "method", [m for m in METHODS if BY_ID.keys() & inspect.signature(getattr(Nexus, m)).parameters]
)
def test_no_method_reaches_a_row_of_another_namespace_by_its_id(both: Sandbox, method: str) -> None:
    """The client has no limit, so only the filters stand between the two."""
    parameters = inspect.signature(getattr(Nexus, method)).parameters
    [name] = BY_ID.keys() & parameters
    more = {"content": "A correction."} if "content" in parameters else {}
    before = everything_of(both, THEIRS)
    for (id,) in both.sql(
        f"SELECT id FROM {BY_ID[name]} WHERE namespace_id = (SELECT id FROM namespaces WHERE name = :name)", name=THEIRS
    ):
        with pytest.raises(NotFound):
            getattr(Nexus(), method)(MINE, **{name: id}, **more)
    assert everything_of(both, THEIRS) == before


def repr_of(found: Any) -> str:
    """What a function returned, with the columns of rows."""
    if isinstance(found, Base):
        return repr({column.name: getattr(found, column.key, None) for column in found.__table__.columns})
    if isinstance(found, Mapping):
        return repr({key: repr_of(value) for key, value in found.items()})
    if isinstance(found, (list, tuple, set)) or inspect.isgenerator(found):
        return repr([repr_of(one) for one in found])
    return repr(found)


# --- servers where the role cannot be made ----------------------------------------------------------------------------
@pytest.fixture
def plain(here: Sandbox) -> Iterator[str]:
    """The address of an empty database whose owner may make no roles, as on some managed servers."""
    name = "rls_plain"
    administer(here.servers, f"CREATE ROLE {name} LOGIN")
    administer(here.servers, f"CREATE DATABASE {name} OWNER {name}")
    url = here.servers.database_url.replace("/nexus?", f"/{name}?").replace("//nexus@", f"//{name}@")
    yield url
    administer(here.servers, f"DROP DATABASE {name} WITH (FORCE)")
    administer(here.servers, f"REVOKE {tenancy.ROLE} FROM {name}")
    administer(here.servers, f"DROP ROLE {name}")


def test_an_owner_who_may_not_use_the_role_goes_on_with_the_filters_until_somebody_grants_it(
    here: Sandbox, plain: str
) -> None:
    schema.upgrade(plain)
    assert plain != here.database_url
    deployment = Deployment(Settings(database_url=plain, redis_url=here.servers.redis_url, key_prefix="rls"))
    try:
        with deployment.database.transaction() as tx:
            assert tx.scalar(text("SELECT current_user")) == "rls_plain"
            assert tenancy.fault(tx) == "this user may not change to the role nexus_tenant"
        nexus = Nexus(deployment, namespaces=[MINE])
        nexus.create_namespace(MINE)
        with pytest.raises(NotAllowed):
            nexus.create_namespace(THEIRS)
        assert [one.namespace for one in nexus.namespaces()] == [MINE]
        administer(here.servers, f"GRANT {tenancy.ROLE} TO rls_plain")
        schema.upgrade(plain)
        Nexus(deployment).create_namespace(THEIRS)
        with tenancy.limited_to([MINE]), deployment.database.transaction() as tx:
            assert tx.scalar(text("SELECT current_user")) == tenancy.ROLE
            assert tx.scalars(text("SELECT name FROM namespaces")).all() == [MINE]
        with deployment.database.transaction() as tx:
            assert len(tx.scalars(text("SELECT name FROM namespaces")).all()) == 2
    finally:
        deployment.close()


def test_another_user_with_rights_works_as_before(both: Sandbox) -> None:
    """A deployment whose processes do not own the tables: policies for tenants do not concern its user."""
    with both.deployment.database.transaction() as tx:
        tx.execute(text("CREATE ROLE rls_other"))
        tx.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO rls_other"))
        tx.execute(text("SET LOCAL ROLE rls_other"))
        assert tx.scalar(text("SELECT count(DISTINCT namespace_id) FROM memories")) == 2
        tx.execute(text("RESET ROLE"))
        tx.rollback()


def test_policies_are_made_once(here: Sandbox) -> None:
    connected = create_engine(here.database_url, poolclass=NullPool)
    before = here.sql("SELECT oid, xmin::text FROM pg_policy ORDER BY oid")
    with connected.connect() as connection:
        assert tenancy.install(connection) == ""
    assert here.sql("SELECT oid, xmin::text FROM pg_policy ORDER BY oid") == before

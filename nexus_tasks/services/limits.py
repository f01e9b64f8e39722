"""Limit a client to some namespaces: refuse calls about others, and let Postgres refuse their rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nexus_tasks import services
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NotAllowed, NotFound
from nexus_tasks.storage import tenancy

T = TypeVar("T")

# Methods of no namespace that a limited client may call. They filter by the limit themselves.
_WITHOUT_NAMESPACE = frozenset({"namespaces"})


def limited_methods(client: type[T]) -> type[T]:
    """A class decorator: every public method obeys the client's ``limit`` (``None``, or the allowed namespaces)."""
    for name, method in list(vars(client).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.iscoroutinefunction(method):
            setattr(client, name, _limited(method))
    return client


def _limited(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        allowed = self.limit
        if allowed is None:
            return method(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs)
        with tenancy.limited_to(allowed):
            _check(method.__name__, signature, given.arguments, self.deployment, allowed)
            return method(*given.args, **given.kwargs)

    return call


def _check(
    method: str, signature: inspect.Signature, given: dict[str, Any], deployment: Deployment, allowed: Sequence[str]
) -> None:
    """Check the namespace or the job of a call. A missing namespace becomes the only allowed one.

    Raises:
        NotAllowed: the call is about another namespace, or about all of them.
        NotFound: the job belongs to another namespace.
    """
    if "namespace" in signature.parameters:
        given["namespace"] = allowed_namespace(allowed, given.get("namespace"), method)
    elif "job_id" in signature.parameters:
        if services.jobs.show_job(deployment, given["job_id"]).namespace not in allowed:
            raise NotFound(f"There is no job {given['job_id']!r}.", remedy="List jobs with `nexus jobs list`.")
    elif method not in _WITHOUT_NAMESPACE:
        refuse_limited(allowed, method)


def allowed_namespace(allowed: Sequence[str] | None, named: str | None, what: str) -> str | None:
    """The namespace that ``what`` (a method or command) works on. A missing one becomes the only allowed one.

    Raises:
        NotAllowed: the client may not use the namespace, or none is named and the client may use several.
    """
    if allowed is None or named in allowed:
        return named
    if named is not None:
        only = _listed(allowed)
        raise NotAllowed(f"This client serves {only} only.", remedy="Name another namespace, or another client.")
    if len(allowed) != 1:
        raise NotAllowed(f"{what} needs a namespace here.", remedy=f"Name one of {_listed(allowed)}.")
    return allowed[0]


def refuse_limited(allowed: Sequence[str] | None, what: str) -> None:
    """Refuse a method or command that concerns all namespaces.

    Raises:
        NotAllowed: the client is limited.
    """
    if allowed is not None:
        raise NotAllowed(f"{what} concerns all namespaces, and this client serves {_listed(allowed)} only.")


def _listed(allowed: Sequence[str]) -> str:
    return ", ".join(allowed) or "no namespace"

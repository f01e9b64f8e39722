"""List, show, make and change namespaces (tenants)."""

from __future__ import annotations

from collections.abc import Sequence

from nexus_tasks import limits
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import BudgetHeld, InvalidInput, OverBudget, PriceUnknown
from nexus_tasks.event_time import check_zone
from nexus_tasks.storage import memories, namespaces, tenancy
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks import follow_ups
from nexus_tasks.transcripts.scrubbing import refuse_tokens
from nexus_tasks.transcripts.scrubbing import scrub as scrub_text
from nexus_tasks.types import NamespaceDetails, NamespaceInfo, check_name, check_namespace, clean_text


def list_namespaces(deployment: Deployment, *, limit: int, offset: int) -> list[NamespaceInfo]:
    """See :meth:`nexus_tasks.client.Nexus.namespaces`."""
    with deployment.database.transaction() as tx:
        return [_info(known) for known in namespaces.listed(tx, tenancy.limit(), limit=limit, offset=offset)]


def show_namespace(deployment: Deployment, namespace: str) -> NamespaceDetails:
    """See :meth:`nexus_tasks.client.Nexus.namespace`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        return NamespaceDetails(
            namespace=known.name,
            observers=known.observers,
            budget_usd_per_day=known.budget_usd_per_day,
            concurrency=known.concurrency,
            observe=known.observe,
            scrub=known.scrub,
            time_zone=known.time_zone,
            language=known.language,
            instructions=known.instructions,
            memories=memories.count_by_level(tx, known.id),
        )


def create_namespace(deployment: Deployment, namespace: str) -> None:
    """Make a namespace with default settings, unless it exists."""
    with deployment.database.transaction() as tx:
        namespaces.ensure(tx, check_namespace(namespace))


def change_namespace(
    deployment: Deployment,
    namespace: str,
    *,
    observers: Sequence[str] | None,
    budget_usd_per_day: float | None,
    concurrency: int | None,
    observe: bool | None,
    scrub: bool | None,
    time_zone: str | None,
    language: str | None,
    instructions: str | None,
    unset: Sequence[str],
) -> NamespaceInfo:
    """See :meth:`nexus_tasks.client.Nexus.set_namespace`."""
    if observers is not None and not observers:
        raise InvalidInput("observers must name at least one observer.")
    if budget_usd_per_day is not None and not 0 <= budget_usd_per_day < 1e8:
        raise InvalidInput("budget_usd_per_day must be 0 or more, and less than 100,000,000.")
    if concurrency is not None and concurrency < 1:
        raise InvalidInput("concurrency must be 1 or more.")
    if instructions is not None:
        instructions = clean_text(instructions).strip()
        if len(instructions) > limits.INSTRUCTIONS_CHARACTERS:
            raise InvalidInput(
                f"instructions have {len(instructions):,} characters, and may have"
                f" {limits.INSTRUCTIONS_CHARACTERS:,}: each model call pays for them."
            )
    if unknown := set(unset) - {"budget_usd_per_day", "concurrency", "language"}:
        raise InvalidInput(f"{', '.join(sorted(unknown))} cannot be unset.")
    with deployment.database.transaction() as tx:
        before = namespaces.get(tx, check_namespace(namespace))
        if language is not None and language not in (known_languages := namespaces.languages(tx)):
            raise InvalidInput(f"language must be one of {', '.join(known_languages)}, not {language!r}.")
        if before.scrub if scrub is None else scrub:
            refuse_tokens("observers", observers or ())
            # A placeholder may be longer than its secret, and the limit holds for what is stored.
            instructions = instructions and scrub_text(instructions)[: limits.INSTRUCTIONS_CHARACTERS]
        known = namespaces.change(
            tx,
            namespace,
            observers=None if observers is None else [check_name("observers", name) for name in observers],
            budget_usd_per_day=budget_usd_per_day,
            concurrency=concurrency,
            observe=observe,
            scrub=scrub,
            time_zone=None if time_zone is None else check_zone("time_zone", time_zone),
            language=language,
            instructions=instructions,
            unset=unset,
        )
    deployment.forget_namespace(namespace)
    if budget_usd_per_day is not None or "budget_usd_per_day" in unset:
        held = BudgetHeld.wait_reason, BudgetHeld.reserved_reason
        for reason in (OverBudget.wait_reason, *held, PriceUnknown.wait_reason):
            follow_ups.hurry_all(deployment, reason, namespace)
    return _info(known)


def _info(known: NamespaceSettings) -> NamespaceInfo:
    return NamespaceInfo(
        namespace=known.name,
        observers=known.observers,
        budget_usd_per_day=known.budget_usd_per_day,
        concurrency=known.concurrency,
        observe=known.observe,
        scrub=known.scrub,
        time_zone=known.time_zone,
        language=known.language,
        instructions=known.instructions,
    )

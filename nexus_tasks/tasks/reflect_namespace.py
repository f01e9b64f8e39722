"""reflect_namespace: the job that asks for a reflection of every perspective with new facts, then archives messages."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import Request
from nexus_tasks.tasks import follow_ups, reflect_perspective
from nexus_tasks.tasks.arguments import NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome


class ReflectNamespace(Arguments):
    """The namespace to reflect on."""

    scope: ClassVar = ("namespace",)
    namespace: NamespaceName


@job(arguments=ReflectNamespace, queue="reflect", probe=probe_model("reflect"))
@in_namespace
def reflect_namespace(work: NamespaceRun, _arguments: ReflectNamespace) -> JobOutcome:
    """Ask for a reflection of each perspective with new facts, then archive old messages."""
    from nexus_tasks.cognition import reflect  # heavy, and a producer needs none of it

    namespace = work.namespace.name
    outcome, due = reflect.reflect_namespace(work.resources, work.context())
    urgency = work.run.flags.urgency or "live"
    requests = [reflect_perspective.request(namespace, *perspective, urgency=urgency) for perspective in due]
    follow_ups.ask(work.deployment, requests)
    follow_ups.hurry_dream(work.deployment, work.namespace)
    return outcome


def request(namespace: str, *, urgency: str) -> Request:
    """The request for the reflections of a namespace."""
    asked = reflect_namespace.request_for(ReflectNamespace(namespace=namespace))
    return replace(asked, flags=replace(asked.flags, urgency=urgency))

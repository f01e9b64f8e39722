"""The job that remembers an order. Its outbox is the table of orders."""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.db import close_old_connections

from nexus_tasks import Message, Nexus
from nexus_tasks.jobs import Arguments, JobOutcome, NamespaceRun, Outbox, in_namespace, job
from shop.models import Order


class RememberOrder(Arguments):
    """The order to remember."""

    scope: ClassVar = ("namespace", "order_id")
    namespace: str
    order_id: int


def _page(_deployment: Any, _tx: Any, after: int, limit: int) -> Sequence[tuple[int, RememberOrder]]:
    """Orders that want to be remembered. Django's own connection reads them, whichever database they are in.

    Celery closes Django's connections between tasks only. Reconcile and the sweep call this function and the next one
    in threads without tasks. Without the first line, a connection that the database has closed would stay there.
    """
    close_old_connections()
    wanted = Order.objects.filter(id__gt=after, wants_memory=True).order_by("id")[:limit]
    return [(order.pk, RememberOrder(namespace="django-shop", order_id=order.pk)) for order in wanted]


def _mark(_tx: Any, _namespace_id: int, args: RememberOrder, *, dead: bool) -> None:
    """A dead letter wants nothing, until somebody retries it."""
    close_old_connections()
    Order.objects.filter(pk=args.order_id).update(wants_memory=not dead)


@job(arguments=RememberOrder, queue="maintenance", outbox=Outbox(page=_page, mark=_mark))
@in_namespace
def remember_order(work: NamespaceRun, arguments: RememberOrder) -> JobOutcome:
    """Store what was ordered. A job that runs twice stores it once, because the message has the order's id."""
    order = Order.objects.filter(pk=arguments.order_id).first()
    if order is not None:
        said = Message(author=order.customer, content=order.text, id=f"order:{order.pk}")
        Nexus(work.deployment).ingest(arguments.namespace, f"orders-of-{order.customer}", [said], end=True)
    with work.database.transaction() as tx:
        outcome = work.commit(tx, JobOutcome(status="completed" if order else "gone"))
    Order.objects.filter(pk=arguments.order_id).update(wants_memory=False)
    return outcome

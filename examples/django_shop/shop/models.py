"""The orders of the shop."""

from typing import Any

from django.db import models, transaction


class Order(models.Model):
    """An order. Its row wants to be remembered until a job has done it: the table is the job's outbox."""

    customer = models.CharField(max_length=100)
    text = models.TextField()
    wants_memory = models.BooleanField(default=True, db_index=True)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Store the order. When the transaction commits, the job is asked for; if that fails, reconcile asks for it."""
        from shop.jobs import remember_order

        super().save(*args, **kwargs)
        if self.wants_memory:
            # Robust: an error here must not reach the caller, who would take the stored order for a failed one.
            transaction.on_commit(lambda: remember_order.delay(namespace="django-shop", order_id=self.pk), robust=True)

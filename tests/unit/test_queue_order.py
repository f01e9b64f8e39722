"""Derivation goes first, and no queue starves."""

from __future__ import annotations

from collections import Counter

from kombu.utils.scheduling import cycle_by_name

from nexus_tasks import config


def taken(queues: dict[str, int], messages: int) -> list[str]:
    """Which queue each message is taken from, when each holds so many."""
    left, order = Counter(queues), []
    turns = cycle_by_name(config.broker_transport_options["queue_order_strategy"])()
    turns.update(list(queues))
    for _ in range(messages):
        queue = next(name for name in turns.consume(len(queues)) if left[name])
        left[queue] -= 1
        order.append(turns.rotate(queue))
    return order


def test_derivation_takes_four_messages_of_five_and_the_others_take_turns() -> None:
    order = taken({"digest": 99, "derive": 99, "reflect": 99}, 20)
    assert order[:5] == ["derive"] * 4 + ["digest"]
    assert Counter(order) == {"derive": 16, "digest": 2, "reflect": 2}


def test_a_queue_that_is_empty_costs_no_turn() -> None:
    assert taken({"derive": 2, "digest": 3}, 5) == ["derive", "derive", "digest", "digest", "digest"]


def test_a_worker_without_the_derive_queue_takes_turns() -> None:
    assert taken({"digest": 9, "reflect": 9}, 4) == ["digest", "reflect"] * 2


def test_an_urgent_message_is_taken_first_and_a_flood_of_them_leaves_half_of_the_turns() -> None:
    assert taken({"derive": 99, "urgent": 1}, 3) == ["urgent", "derive", "derive"]
    order = taken({"derive": 99, "digest": 99, "urgent": 99}, 20)
    assert order[::2] == ["urgent"] * 10
    assert order[1::2] == (["derive"] * 4 + ["digest"]) * 2
    assert taken({"urgent": 3}, 3) == ["urgent"] * 3

"""A perspective's watermark moves only from where the run that moves it had found it."""

from __future__ import annotations

import pytest

from nexus_tasks.deployment import default_deployment
from nexus_tasks.storage import perspectives
from tests.integration.reflecting import know
from tests.sandbox import Sandbox


@pytest.mark.parametrize(("ahead", "moves"), [(0, True), (1, False), (-1, False)], ids=["as read", "behind", "ahead"])
def test_of_two_reflections_that_read_the_same_one_moves_the_watermark(here: Sandbox, ahead: int, moves: bool) -> None:
    [fact] = know("I like green tea.")
    [(perspective, through)] = here.sql("SELECT id, reflected_through FROM perspectives WHERE subject = 'ann'")
    with default_deployment().database.transaction() as tx:
        assert perspectives.advance(tx, perspective, seen=through - ahead, through=fact) is moves
    after = here.sql("SELECT reflected_through FROM perspectives WHERE subject = 'ann'")
    assert after == [(fact if moves else through,)]

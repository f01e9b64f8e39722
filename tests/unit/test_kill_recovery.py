"""What the kill loop takes for a recovery: the benchmark's claims are worth what this is."""

from __future__ import annotations

from benchmarks.kill_recovery import Kill, Life, Recovery, Touch, recoveries

A, B, C = 1, 2, 3  # workers


def runs(at: float, group: int) -> Touch:
    return Touch(at, group, started=True)


def waits(at: float, group: int) -> Touch:
    return Touch(at, group, started=False)


def found(touches: list[Touch], kills: list[Kill], lost: list[float] | None = None) -> list[tuple[float, list[str]]]:
    one = recoveries({"job": touches}, kills, [("job", at) for at in lost or []], [])
    assert all(isinstance(each, Recovery) and each.job == "job" for each in one)
    return [(each.seconds, [hit.how for hit in each.hits]) for each in one]


def test_the_clock_runs_from_the_kill_of_the_worker_that_had_the_job() -> None:
    assert found([runs(0, A), runs(13, C)], [Kill(1, B), Kill(2, A)]) == [(11, ["cut off"])]


def test_a_job_that_no_kill_has_hit_recovers_from_nothing() -> None:
    assert found([runs(0, A)], [Kill(-1, A), Kill(1, B)]) == []
    assert found([runs(0, A), runs(5, A)], [Kill(1, B)]) == []  # its worker was slow, not dead


def test_it_stops_when_the_job_runs_and_not_while_it_waits_for_its_turn() -> None:
    assert found([runs(0, A), waits(12, B), runs(14, B)], [Kill(1, A)]) == [(13, ["cut off"])]


def test_a_second_kill_sets_the_clock_back_and_is_counted() -> None:
    twice = [(15, ["cut off", "cut off"])]
    assert found([runs(0, A), waits(12, B), runs(28, C)], [Kill(1, A), Kill(13, B)]) == twice
    assert found([runs(0, A), runs(28, C)], [Kill(1, A)], lost=[13]) == [(15, ["cut off", "message"])]


def test_a_message_that_was_lost_needs_no_earlier_run() -> None:
    assert found([runs(16, C)], [Kill(4, A)], lost=[4]) == [(12, ["message"])]


def test_each_of_several_recoveries_counts() -> None:
    kills = [Kill(1, A), Kill(14, B)]
    assert found([runs(0, A), runs(12, B), runs(27, C)], kills) == [(11, ["cut off"]), (13, ["cut off"])]


def test_seconds_without_any_worker_are_told() -> None:
    def deserted(*lives: tuple[float, float]) -> float:
        [one] = recoveries({"job": [runs(0, A), runs(20, C)]}, [Kill(1, A)], [], [Life(*life) for life in lives])
        return one.deserted

    assert deserted((-5, 1), (-2, 30)) == 0
    assert deserted((-5, 1), (4, 8), (6, 9), (7, 8), (15, 30), (40, 50)) == 3 + 6
    assert deserted((-5, 1)) == 19

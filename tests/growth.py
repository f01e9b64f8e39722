"""Whether the time of a regular expression, or of a function, grows faster than the length of the text.

The time is this thread's CPU time, so other processes do not change it much. A first measurement finds what may be
slow. Only that is measured again, at growing lengths, and the shortest of several times counts.
"""

from __future__ import annotations

import gc
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from tests.adversary import attacks

# A text that takes less than this is not slow. Linear patterns need about 0.01 to 0.1 µs a character here.
FREE_SECONDS, FREE_SECONDS_A_CHARACTER = 0.000_1, 0.000_000_4
# The length grows by 4. A linear time grows by 4, a quadratic one by 16; the limit is n to the power of 1.45.
FACTOR, LIMIT = 4, 7.5
LONGEST_SECONDS = 0.2  # a text that takes longer is not made longer a second time
STOPPED_SECONDS = 4.0  # a search is ended after this time; a quadratic one of 0.2 s takes 3.2 s at 4 times the length
DEAREST = 0.000_02  # seconds a character: 300,000 characters in 6 s
SHORT = 2_000  # below this length, a repetition that is limited to {1,500} looks quadratic


def run(pattern: re.Pattern[str], methods: Iterable[str]) -> Callable[[str], None]:
    """A function that uses ``pattern`` as the package does. Any other method than these two searches everywhere."""
    if not methods or not {"match", "fullmatch"}.issuperset(methods):
        return lambda text: deque(pattern.finditer(text), 0) and None
    return lambda text: [getattr(pattern, one)(text) for one in methods] and None


def fault(pattern: re.Pattern[str], *, methods: Iterable[str] = (), length: int, most: int | None = None) -> str | None:
    """Describe a text on which ``pattern`` is too slow. ``None`` if there is none.

    Args:
        methods: the pattern's methods that the package calls.
        length: the length of the texts, in characters.
        most: the greatest length that the package gives to the pattern, if there is one.
    """
    if isinstance(pattern.pattern, bytes):  # the attacks are texts
        pattern = re.compile(pattern.pattern.decode("latin-1"), pattern.flags | re.ASCII)
    return slow_text(run(pattern, methods), attacks(pattern), length=length, most=most)


def slow_text(
    use: Callable[[str], object], made: Iterable[Callable[[int], str]], *, length: int, most: int | None = None
) -> str | None:
    """Describe a text for which ``use`` is too slow. ``None`` if there is none.

    Args:
        made: functions that make a text of a length.
        length: the length of the first texts, in characters.
        most: the greatest length that the package gives to ``use``, if there is one.
    """
    linear, size = FREE_SECONDS_A_CHARACTER, min(length, most or length)
    for attack in made:
        seconds = _seconds(use, attack(size))
        if seconds > FREE_SECONDS + linear * size:
            if found := _too_slow(use, attack, size, most):
                return f"{found}: {attack(60)[:120]!r}"
            # The growth is linear, so another text that takes this time is no slower.
            linear = max(linear, 1.5 * seconds / size)
    return None


def _too_slow(use: Callable[[str], object], attack: Callable[[int], str], size: int, most: int | None) -> str | None:
    if most is not None:
        seconds = _shortest(use, attack(most))
        return f"{seconds:.3f} s for {most:,} characters" if seconds > DEAREST * most else None
    before, growth = _shortest(use, attack(size)), 0.0
    while not growth or before < LONGEST_SECONDS:
        after = _shortest(use, attack(size * FACTOR))
        growth = after / before
        size, before = size * FACTOR, after
        if size >= SHORT * FACTOR and growth < LIMIT:
            break
    if growth > LIMIT:
        return f"{growth:.0f} times the time for {FACTOR} times the length, {before:.3f} s for {size:,} characters"
    return f"{before:.3f} s for {size:,} characters" if before > max(DEAREST * size, 0.005) else None


def _shortest(use: Callable[[str], object], text: str) -> float:
    first = _seconds(use, text)
    return first if first > LONGEST_SECONDS else min(first, *(_seconds(use, text) for _ in range(2)))


def _seconds(use: Callable[[str], object], text: str) -> float:
    collecting = gc.isenabled()
    gc.disable()
    try:
        began = time.thread_time()
        before = signal.signal(signal.SIGVTALRM, _stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, STOPPED_SECONDS)
        with suppress(_Stopped):
            use(text)
        return time.thread_time() - began
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        if collecting:
            gc.enable()


class _Stopped(Exception):
    """A pattern took too long. ``re`` looks for signals while it searches."""


def _stop(*_: object) -> None:
    raise _Stopped

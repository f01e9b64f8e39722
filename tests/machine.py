"""A machine of random steps, which keeps a log of them. Its subclasses have the steps and a model of what they do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping


class RandomMachine:
    """Random steps, and the log that is printed when the model does not hold.

    Args:
        seed: of the random steps. The same seed makes the same steps, as long as the answers are the same.
    """

    def __init__(self, seed: int) -> None:
        self.luck, self.log, self.happened = random.Random(seed), [f"seed {seed}"], Counter[str]()

    def steps(self) -> Mapping[Callable[[], None], int]:
        """Each step, and how often it comes in comparison with the others."""
        raise NotImplementedError

    def settle(self) -> None:
        """End what was begun, and compare everything with the model."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what the machine holds."""

    def note(self, what: str, *details: object) -> None:
        """Log and count what happens."""
        self.happened[what] += 1
        self.log.append(f"{what} {' '.join(map(str, details))}")

    def run(self, many: int) -> None:
        """Make so many steps, and settle."""
        steps = self.steps()
        try:
            for _ in range(many):
                [step] = self.luck.choices(list(steps), list(steps.values()))
                step()
            self.settle()
        except BaseException:
            print("\n".join(self.log))
            raise
        finally:
            self.close()

"""`choose`: the less loaded of two that are drawn."""

import random
from collections import Counter

from roost.bound import least_loaded


def test_each_pair_is_drawn_as_often():
    drawn = Counter()
    pair = []

    def load(rank):
        pair.append(rank)
        return 0

    for _ in range(6000):
        pair.clear()
        least_loaded([3, 5, 7], load)
        drawn[tuple(pair)] += 1
    assert len(drawn) == 6
    # Six ways, 1000 times each: 29 is the deviation to expect.
    assert all(800 < times < 1200 for times in drawn.values()), drawn


def test_the_less_loaded_is_taken():
    assert {least_loaded([0, 1], [5, 2].__getitem__) for _ in range(100)} == {1}
    assert least_loaded([4], {}.__getitem__) == 4


def test_what_the_program_draws_next_is_as_it_was():
    """A seeded program would draw other numbers for each call."""
    before = random.getstate()
    least_loaded([0, 1, 2], lambda rank: rank)
    assert random.getstate() == before

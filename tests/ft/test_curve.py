"""The curve of losses: the same as lists would give, in some bytes a step."""

import sys
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from roost.ft.curve import Curve


@given(st.lists(st.tuples(st.integers(0, 1 << 40) | st.integers(4090, 4100), st.integers(-1000, 1000)), max_size=60))
def test_it_is_what_lists_would_give(told):
    curve, lists = Curve(), defaultdict(list)
    for number, loss in told:
        curve.add(number, float(loss))
        lists[number].append(loss)
    known = [lists[number] for number in sorted(lists)]
    assert len(curve) == len(known)
    assert curve.means() == tuple(sum(one) / len(one) for one in known)
    assert curve.participants() == tuple(map(len, known))


def test_a_step_takes_some_bytes():
    curve = Curve()
    steps = 100_000
    for number in range(steps):
        for replica in range(3):
            curve.add(number, float(replica))
    held = sum(sys.getsizeof(part) for piece in curve._pieces.values() for part in piece)
    assert held < 20 * steps

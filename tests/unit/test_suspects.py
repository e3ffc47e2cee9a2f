"""Who is suspected when an operation has not ended in time."""

import pytest

from roost.collectives.suspects import Overdue, Standing, suspects_of

NAMES = ["a", "b", "c"]
CALLED, ON_GPU = (0, "the call has not returned"), (2, "the GPU has not done it")


def standing(begun=4, name="all_reduce", is_in_it=True, stage=None):
    return Standing(begun, name, is_in_it, stage)


@pytest.mark.parametrize(
    ("standings", "lagging", "text", "suspects"),
    [
        ([standing(), None, standing()], [], "b does not answer", [1]),
        (
            [standing(), standing(3, "barrier"), standing(name="reduce")],
            [1],
            "b has not begun it (its last is barrier, operation 3); c is in reduce instead of all_reduce",
            [1, 2],
        ),
        # The member that asks is the odd one.
        (
            [standing(), standing(name="barrier"), standing(name="barrier")],
            [],
            "a is in all_reduce instead of barrier",
            [0],
        ),
        ([standing(), standing(0, "nothing"), standing()], [], "b has not begun it (it has begun none)", [1]),
        ([standing()] * 3, [2], "all ranks have begun it, and what is missing is the part of c", [2]),
        (
            [standing(is_in_it=False), standing(), standing(6, "barrier", is_in_it=False)],
            [],
            "all ranks have begun it, it has ended at a, c, and hangs at b or one of these",
            [1],
        ),
        (
            [standing(stage=ON_GPU), standing(stage=CALLED), standing(stage=ON_GPU)],
            [],
            "all ranks have begun it, and at b the call has not returned, where the others are further",
            [1],
        ),
        (
            [standing(stage=ON_GPU)] * 3,
            [],
            "all ranks have begun it, and at all of them the GPU has not done it: which of them hangs cannot be seen from outside",
            [],
        ),
        (
            [standing(), standing(stage=ON_GPU), standing()],
            [],
            "all ranks have begun it and none has ended it: which of them hangs cannot be seen from outside",
            [],
        ),
    ],
)
def test_what_can_be_known(standings, lagging, text, suspects):
    found = suspects_of(Overdue(4, "all_reduce"), NAMES, dict(enumerate(standings)), lagging)
    assert found == (text, suspects)


@pytest.mark.parametrize(
    ("sender", "receiver", "text", "suspects"),
    [
        (standing(1, "message of 5 int8"), standing(2, "message of 5 int8"), "c has not sent it", [2]),
        (standing(2, "message of 5 int8"), standing(0, "nothing"), "a has not called receive for it", [0]),
        (standing(2, "message of 5 int8"), None, "a does not answer", [0]),
        (
            standing(2, "message of 5 int8"),
            standing(2, "message of 6 int8"),
            "a is in message of 6 int8 instead of message of 5 int8",
            [0],
        ),
    ],
)
def test_of_a_message_only_its_two_ends_are_suspected(sender, receiver, text, suspects):
    overdue = Overdue(2, "message of 5 int8", between=(2, 0))
    assert suspects_of(overdue, NAMES, {0: receiver, 2: sender}, []) == (text, suspects)

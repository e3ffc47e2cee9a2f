"""What a job notes of its incidents, by the times that it is told."""

from roost.failure import Failure
from roost.ft.books import Books
from roost.ft.ledger import News, Settlement
from roost.ft.quorum import Member
from roost.point import Point

LOST_AT = 100.0


def lost(books):
    point = Point({"replicas": 2}, 1)
    times = {"died_at": LOST_AT}
    failure = Failure(
        kind="lost", origin="host", mesh="trainers", name="trainers[replicas=1]", point=point, times=times
    )
    return books.failed(1, (0,), failure, 1)


def back(books, at):
    books.settle(Member(0, 0, 0), Settlement(is_yes=True, at=LOST_AT + 0.04))
    books.released(LOST_AT + at)
    books.tell(Member(1, 0, 1), News(times={"first_step": LOST_AT + at + 0.1}))


def test_survivors_are_free_when_their_group_was_aborted():
    books = Books(None, 1)
    incident = lost(books)
    books.released(LOST_AT + 0.002)
    back(books, 5.0)
    assert round(incident.phases["survivors_released"], 6) == 0.002


def test_that_they_are_free_may_be_heard_before_the_failure():
    books = Books(None, 1)
    books.released(LOST_AT - 20)
    books.released(LOST_AT + 0.002)
    incident = lost(books)
    back(books, 5.0)
    assert round(incident.phases["survivors_released"], 6) == 0.002


def test_survivors_whose_collective_failed_before_the_host_was_lost_were_free_then():
    """What is aborted when the lost one comes back is another group."""
    books = Books(None, 1)
    incident = lost(books)
    back(books, 5.0)
    assert incident.phases["survivors_released"] == 0.0
    assert round(incident.survivors_committed, 6) == 0.04

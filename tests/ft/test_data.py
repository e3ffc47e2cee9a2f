import pytest

from roost.ft.data import Feed, GlobalBatch, Item, shares


def values(items):
    return [item and item.value for item in items]


def test_each_item_is_handed_out_once_and_the_end_is_none():
    feed = Feed("abc")
    assert values([feed.take(0, 0, 0), feed.take(1, 0, 0), feed.take(0, 0, 0), feed.take(1, 0, 0)]) == [
        "a",
        "b",
        "c",
        None,
    ]


def test_the_procs_of_a_replica_take_the_same_items():
    feed = Feed("abc", procs=2)
    assert values([feed.take(0, 0, 0), feed.take(0, 0, 1), feed.take(0, 0, 1), feed.take(0, 0, 0)]) == [
        "a",
        "a",
        "b",
        "b",
    ]


def test_what_a_life_took_and_did_not_count_is_skipped_and_never_handed_out_again():
    feed = Feed(range(10))
    for _ in range(3):
        feed.take(0, 0, 0)
    feed.settle(0, 0, counted=[0], discarded=[1])
    assert feed.end_life(0) == 1
    assert feed.skipped == [1, 2]
    assert feed.take(0, 1, 0) == Item(3, 3)


def test_a_life_that_is_over_gets_nothing_and_settles_nothing():
    feed = Feed(range(10))
    feed.take(0, 0, 0)
    feed.end_life(0)
    assert feed.take(0, 0, 0) is None
    feed.settle(0, 0, counted=[0], discarded=[])
    assert feed.skipped == [0]


def test_a_later_life_ends_the_one_before_whatever_was_heard_of_it():
    feed = Feed(range(10))
    feed.take(0, 0, 0)
    assert feed.take(0, 1, 0) == Item(1, 1)
    assert feed.skipped == [0]


def test_data_may_be_endless():
    from itertools import count

    feed = Feed(count())
    assert [feed.take(0, 0, 0).value for _ in range(3)] == [0, 1, 2]


def test_what_was_taken_is_not_kept():
    feed = Feed(range(1000), procs=2)
    for position in range(1000):
        assert feed.take(0, 0, 0) == feed.take(0, 0, 1)
        feed.settle(0, 0, counted=[position], discarded=[])
    one = feed._lives[0]
    assert (len(one.items), len(one.open), feed.skipped) == (0, 0, [])


@pytest.mark.parametrize(
    ("size", "count", "parts"), [(8, 3, (3, 3, 2)), (8, 8, (1,) * 8), (8, 1, (8,)), (9, 3, (3, 3, 3))]
)
def test_a_global_batch_is_shared_as_evenly_as_can_be(size, count, parts):
    assert shares(size, count) == parts
    assert sum(parts) == size


def test_a_global_batch_is_one_that_one_replica_alone_would_have():
    assert list(GlobalBatch(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(ValueError, match="size"):
        GlobalBatch(range(7), 0)

"""A reply as an object: asked for its value in each way, done or not, and taken for what it is."""

import asyncio
import collections.abc

import pytest

from roost.errors import BlockingWaitError
from roost.reply import Reply


def on_a_loop(test):
    return lambda: asyncio.run(test())


def reply_with(value):
    reply = Reply(loop=asyncio.get_running_loop())
    reply.set_result(value)
    return reply


@on_a_loop
async def test_a_value_is_given_however_it_is_asked_for():
    reply = reply_with(3)
    assert reply.result() == reply.result(1) == reply.result(timeout=None) == 3
    assert reply.exception() is reply.exception(timeout=0) is None


@on_a_loop
async def test_what_it_does_not_take_is_refused():
    reply = reply_with(3)
    for ask in (reply.result, reply.exception):
        with pytest.raises(TypeError):
            ask(1, 2)
        with pytest.raises(TypeError):
            ask(seconds=1)


@on_a_loop
async def test_one_that_is_not_there_is_not_waited_for_on_the_loop():
    reply = Reply(loop=asyncio.get_running_loop())
    for ask in (reply.result, reply.exception):
        with pytest.raises(BlockingWaitError):
            ask()
    reply.cancel()
    for ask in (reply.result, reply.exception):
        with pytest.raises(asyncio.CancelledError):
            ask()


@on_a_loop
async def test_an_error_of_the_kind_that_stands_for_not_done():
    reply = Reply(loop=asyncio.get_running_loop())
    error = asyncio.InvalidStateError("the endpoint's own")
    reply.set_exception(error)
    assert reply.exception() is error
    for _ in range(2):
        with pytest.raises(asyncio.InvalidStateError, match="the endpoint's own"):
            reply.result()


@on_a_loop
async def test_it_has_a_coroutines_methods_and_passes_for_a_future_alone():
    reply = reply_with(3)
    assert asyncio.isfuture(reply)
    assert not asyncio.iscoroutine(reply)
    assert not isinstance(reply, collections.abc.Coroutine)
    with pytest.raises(StopIteration) as ended:
        reply.send(None)
    assert ended.value.value == 3
    reply.close()
    with pytest.raises(AttributeError):
        _ = reply.sent

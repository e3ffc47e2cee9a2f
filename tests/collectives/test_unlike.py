"""Ranks that do not begin the same operations, or not in the same order: they are told, each other's names and what each is in."""

import pytest

from roost import this_host

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

PRELOAD = ["torch", "computing"]
SIZE = 4
ODD = 2
# What the odd one is in, and the others. The group's first operation has shown that it works.
TOLD_BY_MEMORY = {
    "size": ("all_reduce of 44 bytes of f32 (sum), operation 2", "all_reduce of 40 bytes of f32 (sum), operation 2"),
    "dtype": ("all_reduce of 40 bytes of i32 (sum)", "all_reduce of 40 bytes of f32 (sum)"),
    "op": ("all_reduce of 40 bytes of f32 (max)", "all_reduce of 40 bytes of f32 (sum)"),
    "large": ("all_reduce of 3600000 bytes of f32 (sum)", "all_reduce of 1200000 bytes of f32 (sum)"),
    "verb": ("reduce of 40 bytes of f32 (sum) to rank 0", "all_reduce of 40 bytes of f32 (sum)"),
    "root": ("reduce of 40 bytes of f32 (sum) to rank 1", "reduce of 40 bytes of f32 (sum) to rank 0"),
    "order": ("all_reduce of 40 bytes of f32 (sum), operation 3", "all_reduce of 40 bytes of f32 (sum), operation 2"),
}


def members(procs, libraries=None):
    from computing import Member

    return procs.spawn("trainers", Member, libraries)


def procs_of(size=SIZE):
    return this_host().spawn_procs({"gpus": size}, preload=PRELOAD, name="procs")


async def test_over_the_hosts_memory_ranks_in_different_operations_are_told_at_once_what_each_is_in():
    async with procs_of() as procs:
        mesh = members(procs)
        for kind, (odd, others) in TOLD_BY_MEMORY.items():
            await mesh.rebuild.call()
            for said in (await mesh.unlike.call(kind, ODD)).values():
                assert said is not None, kind
                text, _ = said
                assert "did not end within" not in text
                assert odd in text, kind
                assert others in text, kind
        assert set((await mesh.rebuild.call()).values()) == {10.0}


async def test_elsewhere_the_deadline_names_who_is_in_something_else_and_in_what():
    async with procs_of() as procs:
        mesh = members(procs, "sockets")
        await mesh.join.call()
        words = "is in broadcast of 10 float32 from rank 0 instead of all_reduce of 10 float32 (sum)"
        for text, suspects in (await mesh.unlike.call("broadcast", ODD, 0.5)).values():
            assert f"trainers[gpus={ODD}] {words}" in text
            assert suspects == (f"trainers[gpus={ODD}]",)


async def test_messages_of_some_ranks_do_not_count_against_the_others():
    async with procs_of() as procs:
        mesh = members(procs)
        await mesh.join.call()
        await mesh.write_letters.call(5)
        for point, said in (await mesh.wait_for.call(ODD, 0.5)).items():
            if point["gpus"] != ODD:
                assert said[1] == (f"trainers[gpus={ODD}]",)
                assert f"trainers[gpus={ODD}] has not begun it (it has begun none)" in said[0]


async def test_a_part_that_was_split_off_after_messages_knows_its_members():
    async with procs_of(5) as procs:
        mesh = members(procs)
        await mesh.join.call()
        await mesh.write_letters.call(3)
        await mesh.divide.call()
        # Ranks 0 and 2 are one part, 1 and 3 the other.
        said = (await mesh.wait_for_in_part.call(2, 0.5)).item(gpus=0)
        assert said[1] == ("trainers[gpus=2]",)
        assert "trainers[gpus=2] has not begun it (its last is all_reduce of 1 float32 (sum), operation 1)" in said[0]


@pytest.mark.parametrize(
    ("sender", "receiver", "suspect", "words"),
    [(None, 1, 0, "has not sent it"), (0, None, 1, "has not called receive for it")],
)
async def test_of_a_message_that_does_not_come_the_other_end_is_named(sender, receiver, suspect, words):
    async with procs_of() as procs:
        mesh = members(procs)
        await mesh.join.call()
        await mesh.write_letters.call(2)
        outcomes = await mesh.message.call(sender, receiver, 0.5)
        text, suspects = outcomes.item(gpus=1 - suspect)
        assert suspects == (f"trainers[gpus={suspect}]",)
        assert f"message 3 from rank 0 to rank 1 did not end within 0.5 s: trainers[gpus={suspect}] {words}" in text


async def test_a_forked_child_does_not_take_its_parents_part():
    async with procs_of() as procs:
        mesh = members(procs)
        await mesh.join.call()
        assert (await mesh.slice(gpus=slice(1, 2)).used_by_a_forked_child.call()).item() == 17
        assert set((await mesh.sum.call()).values()) == {10.0}

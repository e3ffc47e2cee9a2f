"""Every collective with every dtype and odd sizes, and the groups that meshes make."""

import pytest
import pytest_asyncio

from roost import ProcessHosts, this_host

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

PRELOAD = ["torch", "computing"]


@pytest_asyncio.fixture(loop_scope="module")
async def members(libraries):
    from computing import Member

    async with this_host().spawn_procs({"gpus": 8}, preload=PRELOAD, name="trainers") as procs:
        mesh = procs.spawn("trainers", Member, libraries)
        assert [*(await mesh.join.call()).values()] == [(rank, 8) for rank in range(8)]
        yield mesh


KINDS = ["all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_and_receive"]


async def test_every_operation_with_every_dtype_and_size(members):
    for kind in KINDS:
        wrong = await members.all_of_them.call(kind)
        assert not any(wrong.values()), kind
    assert set((await members.sum_in_a_thread.call()).values()) == {36.0}
    assert {tuple(one) for one in (await members.use_once.call()).values()} == {(8.0,) * 5}
    assert {tuple(one) for one in (await members.two_at_once.call()).values()} == {(8.0, 16.0)}


@pytest.mark.parametrize("libraries", ["memory"], indirect=True)
async def test_numbers_of_all_sizes_have_torchs_bits_and_others_have_turns(members, figures):
    said = [*(await members.awkward_numbers.call(300_001)).values()]
    assert not any(wrong for _, wrong in said), said
    figures(f"{said[0][0] * len(said)} numbers of 8 ranks compared, 0 differ")
    # Sums that are there at once are no reason to keep the loop from everything else.
    assert min((await members.turns_of_the_loop.call(400)).values()) >= 400 // 16 - 1


async def test_memory_that_one_rank_cannot_reach_is_used_by_none():
    from computing import Member

    async with this_host().spawn_procs({"gpus": 3}, preload=PRELOAD) as procs:
        mesh = procs.spawn("members", Member)
        for who, wanted in ((None, False), (2, True)):
            assert set((await mesh.join_without_memory.call(who)).values()) == {wanted}
            assert set((await mesh.sum.call()).values()) == {6.0}


async def test_a_split_in_two_and_one_that_has_no_part(members):
    found = [*(await members.divide.call()).values()]
    # Even ranks are 0, 2, 4, 6; odd ones 1, 3, 5; the highest is first.
    assert found == [(3, 12.0), (2, 9.0), (2, 12.0), (1, 9.0), (1, 12.0), (0, 9.0), (0, 12.0), None]


async def test_what_does_not_fit_is_refused_before_anybody_waits(members):
    said = (await members.refused.call()).item(gpus=3)
    for text, wanted in zip(said, REFUSED, strict=True):
        assert wanted in text
    assert (await members.sum.call()).item(gpus=0) == 36.0


REFUSED = [
    "of the type list, not a tensor", "torch.int16 cannot be reduced", "whole numbers", "'median' is unknown", "not contiguous",
    "sparse or nested", "resolve_conj()", "resolve_neg()", "was freed", "out is torch.int64 of shape (0,)", "out lies in the memory",
    "out is torch.float32 of shape (5,)", "on meta, and this communicator's are on cpu", "roost.kernels.dequantise",
    "not a multiple of 8 ranks", "root=8 is none of the 8 ranks", "to=3 is this rank itself", "timeout",
    "is more than 1e+09", "rebuild timeout must be a number", "give a mesh of actors",
    "no dimension 'nodes'; it has gpus",
]  # fmt: skip


async def test_any_dimension_of_a_mesh_and_slices_of_it():
    from computing import Member

    async with this_host().spawn_procs({"hosts": 2, "gpus": 2}, preload=PRELOAD) as procs:
        mesh = procs.spawn("members", Member)
        await mesh.join.call("gpus")
        assert [*(await mesh.sums_of_dimension.call()).values()] == [1.0, 1.0, 5.0, 5.0]
        await mesh.join.call("hosts")
        assert [*(await mesh.sums_of_dimension.call()).values()] == [2.0, 4.0, 2.0, 4.0]
        await mesh.join.call("hosts", "gpus")
        assert [*(await mesh.sums_of_dimension.call()).values()] == [6.0] * 4
        with pytest.raises(RuntimeError, match="each rank makes its own end"):
            mesh.communicator("gpus")


async def test_ranks_that_want_different_backends_are_told_so(standin):
    from computing import Member

    async with this_host().spawn_procs({"gpus": 2}, preload=PRELOAD) as procs:
        mesh = procs.spawn("trainers", Member, standin)
        for said in (await mesh.join_by.call(["gloo", "rccl"])).values():
            assert "these want: trainers[gpus=0] 'gloo', trainers[gpus=1] 'rccl'" in said
        for said in (await mesh.join_by.call(["mpi", "mpi"])).values():
            assert "'mpi' is unknown" in said


async def test_a_machine_without_a_gpu_says_what_was_tried():
    from computing import Member

    async with this_host().spawn_procs({"gpus": 1}, preload=PRELOAD, env={"ROOST_GPU_PLATFORM": "none"}) as procs:
        said = await procs.spawn("trainers", Member).join_by.call_one(["rccl"])
        assert said == "Unavailable: a GPU is not available: ROOST_GPU_PLATFORM is none"


async def test_ranks_on_several_hosts_find_each_other_by_how_their_hosts_are_dialled():
    from computing import Member

    async with ProcessHosts(2) as hosts, hosts.spawn_procs({"gpus": 2}, preload=PRELOAD) as procs:
        mesh = procs.spawn("members", Member)
        await mesh.join.call()
        assert [*(await mesh.sums_of_dimension.call()).values()] == [6.0] * 4
        await mesh.join.call("hosts")
        assert [*(await mesh.sums_of_dimension.call()).values()] == [2.0, 4.0, 2.0, 4.0]

import threading

import pytest
from members import Members, sum_group

torch = pytest.importorskip("torch")
local_sgd = pytest.importorskip("torchft.local_sgd")

from roost.ft.loops import loop_for  # noqa: E402
from roost.ft.sync import DiLoCo, EveryStep, LocalSGD  # noqa: E402

# What torchft's classes call, found with a recorder and by reading; the manager has to have it, and nothing else is called.
SURFACE = {
    "DiLoCo": {
        "_use_async_quorum", "register_state_dict_fn", "disallow_state_dict_read", "allow_state_dict_read",
        "start_quorum", "current_step", "allreduce", "should_commit",
    },
    "LocalSGD": {"disallow_state_dict_read", "allow_state_dict_read", "start_quorum", "allreduce", "should_commit"},
    "OptimizerWrapper": {"start_quorum", "should_commit"},
    "DistributedDataParallel": {"allreduce"},
    "ManagedProcessGroup": {"_pg", "allreduce", "num_participants"},
}  # fmt: skip


class Recorder:
    """Stands before a manager, and notes what is asked of it."""

    def __init__(self, manager):
        object.__setattr__(self, "manager", manager)
        object.__setattr__(self, "asked", set())

    def __getattr__(self, name):
        self.asked.add(name)
        return getattr(self.manager, name)


# Members are threads, which share torch's generator, and make their models at the same time.
seeding = threading.Lock()


def net(width=4):
    with seeding:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 1))


def learn(model, optimizer, value=1.0):
    optimizer.zero_grad()
    (model(torch.full((2, 4), value)) ** 2).mean().backward()
    optimizer.step()


def use_diloco(manager):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in model]
    with local_sgd.DiLoCo(manager, list(model), optimizer, outer, 4):
        for _ in range(8):
            learn(model, optimizer)


def use_local_sgd(manager):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with local_sgd.LocalSGD(manager, model, optimizer, 2):
        for _ in range(4):
            learn(model, optimizer)


def use_wrapper(manager):
    from torchft.optim import OptimizerWrapper

    model = net()
    learn(model, OptimizerWrapper(manager, torch.optim.SGD(model.parameters(), lr=0.1)))


def use_ddp(manager):
    from torchft.ddp import DistributedDataParallel

    manager.manager.start_quorum()
    model = net()
    wrapped = DistributedDataParallel(manager, model, bucket_cap_mb=1e-5)
    wrapped(torch.ones(2, 4)).mean().backward()
    assert all(one.grad is not None for one in model.parameters())


def use_managed_group(manager):
    from torchft.process_group import ManagedProcessGroup

    group = ManagedProcessGroup(manager)
    manager.manager.start_quorum()
    tensor = torch.ones(2)
    group.allreduce([tensor], torch.distributed.ReduceOp.SUM).wait()
    assert group.size() == 1


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("DiLoCo", use_diloco),
        ("LocalSGD", use_local_sgd),
        ("OptimizerWrapper", use_wrapper),
        ("DistributedDataParallel", use_ddp),
        ("ManagedProcessGroup", use_managed_group),
    ],
)
def test_torchfts_classes_ask_for_no_more_than_is_known(name, use):
    with Members(1) as members:
        recorder = Recorder(members.managers[0])
        use(recorder)
    assert recorder.asked == SURFACE[name]


def test_torchfts_data_parallel_class_outlives_an_error_in_a_step():
    from torchft.ddp import DistributedDataParallel

    with Members(1) as members:
        manager = members.managers[0]
        manager.start_quorum()
        model = net()
        wrapped = DistributedDataParallel(manager, model, bucket_cap_mb=1e-5)
        members.groups[0].fails_at = 1
        wrapped(torch.ones(2, 4)).mean().backward()
        assert manager.errored() is not None
        assert not manager.should_commit()
        manager.start_quorum()
        wrapped(torch.ones(2, 4)).mean().backward()
        assert manager.should_commit()


@pytest.mark.parametrize("kind", ["plain", "errored", "idle"])
def test_a_work_has_a_finished_future_whatever_happened(kind):
    with Members(1) as members:
        manager = members.managers[0]
        manager.start_quorum()
        if kind == "errored":
            manager.report_error(RuntimeError("x"))
        if kind == "idle":
            manager._quorum = type(manager.quorum)(1, 0, (0,), (0,), idle=(0,))
        work = manager.allreduce(torch.ones(3))
        seen = []
        future = work.get_future().then(lambda done: seen.append(done.value()))
        assert work.wait()
        assert future._fut
        assert future._fut.done()
        assert len(seen) == 1


@pytest.mark.parametrize("can_average", [False, True], ids=["sums", "averages"])
def test_the_average_is_over_those_that_take_part(can_average):
    with Members(3) as members:
        members.healing = {2}
        for group in members.groups:
            group.can_average = can_average
        tensors = [torch.full((2,), float(rank + 1)) for rank in range(3)]

        def member(rank):
            manager = members.managers[rank]
            manager.start_quorum()
            manager.allreduce(tensors[rank]).wait()
            assert manager.num_participants() == 2
            assert manager.participating_rank() == (rank if rank < 2 else None)
            assert manager.should_commit()

        members.run(member)
        assert [one.tolist() for one in tensors] == [[1.5, 1.5]] * 3


def test_what_the_group_averages_is_divided_once():
    with Members(2) as members:
        tensors = [torch.full((2,), float(rank + 1)) for rank in range(2)]
        sums = [torch.full((2,), float(rank + 1)) for rank in range(2)]

        def member(rank):
            manager = members.managers[rank]
            members.groups[rank].can_average = True
            manager.start_quorum()
            manager.allreduce(tensors[rank]).wait()
            manager.allreduce(sums[rank], reduce_op=torch.distributed.ReduceOp.SUM).wait()
            assert manager.should_commit()

        members.run(member)
        assert [one.tolist() for one in tensors] == [[1.5, 1.5]] * 2
        assert [one.tolist() for one in sums] == [[3.0, 3.0]] * 2


def test_small_sums_travel_together_and_each_has_its_own():
    """As LocalSGD and DiLoCo have them; of other kinds, and large ones, each by itself."""
    from roost.ft.joined import SMALL_BYTES

    made = [
        lambda rank: torch.full((3,), float(rank)), lambda rank: torch.full((2, 2), 10.0 + rank).t(),
        lambda rank: torch.full((SMALL_BYTES,), float(rank)), lambda rank: torch.tensor(20.0 + rank),
        lambda rank: torch.full((5,), 30.0 + 2 * rank, dtype=torch.float64), lambda rank: torch.full((1,), 40.0 + rank),
    ]  # fmt: skip
    with Members(2) as members:
        tensors = [[make(rank) for make in made] for rank in range(2)]

        def member(rank):
            manager = members.managers[rank]
            manager.joins_small = True
            for fails in (False, True):
                manager.start_quorum()
                works = [manager.allreduce(one) for one in tensors[rank]]
                if fails and rank == 1:
                    members.groups[1].fails_at = members.groups[1].calls + 1
                for work in works:
                    work.wait()
                assert manager.should_commit() != fails
                if not fails:
                    # The first two and the scalar; the large one; the one of another kind; the last one after it.
                    assert members.groups[rank].calls == 4
                    found[rank] = [one.unique().tolist() for one in tensors[rank]]

        found = {}
        members.run(member)
    assert found == {rank: [[0.5], [10.5], [0.5], [20.5], [31.0], [40.5]] for rank in range(2)}


def test_one_members_error_is_everybodys_no_and_the_next_step_has_a_new_group():
    with Members(2) as members:

        def member(rank):
            manager = members.managers[rank]
            manager.start_quorum()
            first = manager.quorum.id
            if rank == 1:
                manager.report_error(RuntimeError("mine"))
            manager.allreduce(torch.ones(2)).wait()
            assert not manager.should_commit()
            assert manager.current_step() == 0
            manager.start_quorum()
            assert manager.quorum.id == first + 1
            assert manager.should_commit()
            assert manager.current_step() == 1

        members.run(member)


def test_an_error_of_an_earlier_step_is_not_carried_on():
    with Members(1) as members:
        manager = members.managers[0]
        manager.start_quorum()
        manager.report_error(RuntimeError("x"))
        assert not manager.should_commit()
        manager.start_quorum()
        assert manager.errored() is None
        assert manager.should_commit()


@pytest.mark.parametrize("at", [1, 2])
def test_a_step_that_does_not_count_leaves_model_and_optimizer_as_they_were(at):
    with Members(2) as members:

        def member(rank):
            manager = members.managers[rank]
            model = net()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            loop = loop_for(EveryStep(bucket_bytes=64), manager, model, optimizer)
            loop.step(lambda: learn(model, optimizer))
            before = copies(model, optimizer)
            if rank == 0:
                members.groups[0].fails_at = at + 2
            loop.step(lambda: learn(model, optimizer))
            assert manager.current_step() == 1
            assert all(torch.equal(a, b) for a, b in zip(before, copies(model, optimizer), strict=True))
            loop.step(lambda: learn(model, optimizer))
            assert manager.current_step() == 2

        members.run(member)


def test_a_step_is_decided_while_what_follows_backward_is_done():
    with Members(2) as members:

        def member(rank):
            manager = members.managers[rank]
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loop = loop_for(EveryStep(bucket_bytes=64), manager, model, optimizer)

            def inner():
                optimizer.zero_grad()
                model(torch.ones(2, 4)).mean().backward()
                before = [one.detach().clone() for one in model.parameters()]
                quorum = manager.quorum
                with members.changed:
                    decided = members.changed.wait_for(lambda: members.machine.decision(quorum.id, quorum.step), 10)
                assert decided
                # The weights wait for the optimizer all the same.
                assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
                optimizer.step()
                assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

            loop.step(inner)
            assert manager.current_step() == 1

        members.run(member)


# Of each layer, whose steps are in it after two syncs of two steps, the second of which failed.
LEFT = {
    "LocalSGD": (LocalSGD(2), ["own", "own"]),
    "DiLoCo": (DiLoCo(2), ["synced", "synced"]),
    "streaming DiLoCo": (DiLoCo(4, fragments=("0", "1")), ["own", "synced"]),
}


@pytest.mark.parametrize("kind", LEFT)
def test_what_a_sync_that_fails_loses(kind):
    sync, left = LEFT[kind]
    with Members(2) as members:

        def member(rank):
            manager = members.managers[rank]
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            own = []
            # Before the hook that syncs.
            optimizer.register_step_post_hook(lambda *_: own.append(layers(model)))
            loop = loop_for(sync, manager, model, optimizer)

            def inner():
                learn(model, optimizer)

            synced = layers(model)
            for _ in range(2):
                loop.step(inner)
            assert manager.current_step() == 1
            if kind != "streaming DiLoCo":
                synced = layers(model)
            if rank == 0:
                members.groups[0].fails_at = members.groups[0].calls + 1
            for _ in range(2):
                loop.step(inner)
            assert manager.current_step() == 1
            found = layers(model)
            for number, whose in enumerate(left):
                wanted = own[-1][number] if whose == "own" else synced[number]
                assert torch.equal(found[number], wanted), (number, whose)

        members.run(member)


def layers(model):
    return [torch.nn.utils.parameters_to_vector(part.parameters()).detach().clone() for part in model]


@pytest.mark.parametrize("each", [False, True], ids=["one backward", "a backward for each item"])
def test_gradients_count_by_the_share_of_a_global_batch(each):
    """Three items of one member and one of the other: the step is that of all four, and so is who has none and follows."""
    items = torch.randn(4, 4)
    whole = net()
    learn_from(whole, torch.optim.SGD(whole.parameters(), lr=0.1), items, each=False)
    with Members(3) as members:
        learnt = [None] * 3

        def member(rank):
            manager = members.managers[rank]
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            sync = EveryStep(bucket_bytes=64, backwards=None if each else 1)
            loop = loop_for(sync, manager, model, optimizer, is_shared=True)
            mine = [items[:3], items[3:], items[:0]][rank]

            def inner():
                loop.learns_from(len(mine))
                learn_from(model, optimizer, mine, each=each)

            if rank == 2:
                manager.is_idle = True
                loop.idle()
            else:
                loop.step(inner)
            learnt[rank] = [one.detach().clone() for one in model.parameters()]

        members.run(member)
    for found in learnt:
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, whole.parameters(), strict=True))


def learn_from(model, optimizer, items, *, each):
    optimizer.zero_grad()
    for part in items.split(1) if each else [items]:
        ((model(part) ** 2).sum() / len(items)).backward()
    optimizer.step()


def copies(model, optimizer):
    moments = [optimizer.state[one]["exp_avg"].clone() for one in model.parameters()]
    return [one.detach().clone() for one in model.parameters()] + moments


def test_fragments_have_each_parameter_once():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for fragments, text in [(("0", "2"), "parts are 0, 1"), (("0",), "leave out 1.weight"), (("0", "0"), "in two")]:
        every = 2 * len(fragments)
        with pytest.raises(ValueError, match=text):
            loop_for(DiLoCo(every, fragments), None, model, optimizer)


def test_members_of_a_group_add_up():
    groups = sum_group(2)
    tensors = [torch.ones(1), torch.ones(1)]
    works = [group.allreduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]
    threads = [threading.Thread(target=work.wait, args=(5,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.item() for one in tensors] == [2, 2]

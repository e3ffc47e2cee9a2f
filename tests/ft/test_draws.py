"""What a replica draws that has taken the state of a peer."""

import random

import pytest

from roost.ft.draws import Draws

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def undisturbed():
    """The process draws on as if nothing had been."""
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    numpy.random.set_state(before[1])
    torch.set_rng_state(before[2])


def built(seed, step=5):
    """What a replica begins with, whose `build` sets a seed."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    draws = Draws(lambda: step)
    draws.begin()
    return draws


def drawn(count=3):
    return [(random.random(), numpy.random.rand(), torch.rand(()).item()) for _ in range(count)]


def test_replicas_that_are_built_alike_go_on_alike():
    peer = built(7)
    drawn()
    state = peer.state_dict()
    wanted = drawn()
    newcomer = built(7)
    newcomer.load_state_dict(state)
    assert drawn() == wanted


def test_replicas_that_are_built_with_different_numbers_draw_neither_their_peers_nor_their_own_again():
    peer = built(7)
    drawn()
    state = peer.state_dict()
    its = drawn()
    newcomer = built(8)
    own = drawn()
    newcomer = built(8)
    newcomer.load_state_dict(state)
    new = drawn()
    assert not {number for draw in new for number in draw} & {number for draw in own + its for number in draw}
    # The same recovery draws the same.
    newcomer = built(8)
    newcomer.load_state_dict(state)
    assert drawn() == new


def test_each_source_goes_by_itself():
    peer = built(7)
    state = peer.state_dict()
    wanted = drawn()
    newcomer = built(7)
    random.seed(8)
    newcomer.begin()
    newcomer.load_state_dict(state)
    for found, one in zip(drawn(), wanted, strict=True):
        assert found[0] != one[0]
        assert found[1:] == one[1:]


def test_before_a_step_has_counted_all_keep_what_they_were_built_with():
    state = built(7, step=0).state_dict()
    newcomer = built(8)
    wanted = drawn()
    newcomer = built(8)
    newcomer.load_state_dict(state)
    assert drawn() == wanted


def test_a_gpu_that_was_used_has_its_own_and_one_that_was_not_is_left_alone(monkeypatch):
    """As many generators as torch says there are GPUs: stood in for by such of the processor, which have the same methods."""
    gpus = [torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    peer = built(7)
    state = peer.state_dict()
    wanted = [torch.rand(3, generator=one) for one in gpus]
    for number, one in enumerate(gpus, 1):
        one.manual_seed(number)
    newcomer = built(7)
    torch.rand(5, generator=gpus[1])
    newcomer.load_state_dict(state)
    assert all(torch.equal(torch.rand(3, generator=one), its) for one, its in zip(gpus, wanted, strict=True))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert set(peer.state_dict()["now"]) == {"python", "numpy", "torch"}

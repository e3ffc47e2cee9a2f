import pickle

import pytest

torch = pytest.importorskip("torch")

from roost.ft.manifest import SMALL_BYTES, Checksum, manifest_of, tensors_of  # noqa: E402
from roost.ft.reading import _target  # noqa: E402
from roost.ft.staging import bytes_of  # noqa: E402


def travelled(state, own=None):
    """A state as a newcomer has it."""
    manifest, tensors = manifest_of(state)
    manifest = pickle.loads(pickle.dumps(manifest))
    buffer = torch.zeros(manifest.nbytes, dtype=torch.uint8)
    for leaf, tensor in zip(manifest.leaves, tensors, strict=True):
        buffer[leaf.offset : leaf.offset + leaf.nbytes].copy_(bytes_of(tensor.contiguous()))
    known = tensors_of(own or {})
    mine = [_target(leaf, known.get(leaf.path), 0) for leaf in manifest.leaves]
    for leaf, one in zip(manifest.leaves, mine, strict=True):
        bytes_of(one).copy_(buffer[leaf.offset : leaf.offset + leaf.nbytes])
    return manifest.rebuild(mine)


def trained():
    model = torch.nn.Sequential(torch.nn.Linear(300, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 300)).mean().backward()
    optimizer.step()
    return model, optimizer


def test_a_state_arrives_as_it_was():
    model, optimizer = trained()
    state = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "betas": (0.9, 0.99),
        "empty": torch.empty(0, 4), "kinds": [torch.tensor(1.5), torch.arange(3, dtype=torch.int32), torch.ones(2).bfloat16()],
    }  # fmt: skip
    found = travelled(state)
    assert found["step"] == 3
    assert found["betas"] == (0.9, 0.99)
    ours, theirs = tensors_of(state), tensors_of(found)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name])
        assert tensor.dtype == theirs[name].dtype


def test_a_newcomer_that_has_never_stepped_goes_on_as_its_source_does():
    model, optimizer = trained()
    other = torch.nn.Sequential(torch.nn.Linear(300, 4), torch.nn.Linear(4, 1))
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1)
    own = {"model": other.state_dict(), "optimizer": fresh.state_dict()}
    state = travelled({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, own)
    other.load_state_dict(state["model"])
    fresh.load_state_dict(state["optimizer"])
    for one, its in ((model, optimizer), (other, fresh)):
        its.zero_grad()
        one(torch.full((2, 300), 0.5)).mean().backward()
        its.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_it_goes_straight_into_tensors_that_are_there():
    model, _ = trained()
    other, _ = trained()
    travelled({"model": model.state_dict()}, {"model": other.state_dict()})
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_what_is_tied_travels_once():
    shared = torch.ones(100)
    manifest, tensors = manifest_of({"a": shared, "b": shared, "c": shared[:50]})
    assert len(tensors) == 2
    rebuilt = manifest.rebuild([torch.zeros(100), torch.zeros(50)])
    assert rebuilt["a"] is rebuilt["b"]


def test_small_tensors_lie_together():
    _, optimizer = trained()
    manifest, _ = manifest_of({"optimizer": optimizer.state_dict()})
    small = [leaf for leaf in manifest.leaves if leaf.nbytes <= SMALL_BYTES]
    assert len(small) > 4
    assert all(leaf.offset + leaf.nbytes <= manifest.small_bytes for leaf in small)
    assert all(leaf.offset >= manifest.small_bytes for leaf in manifest.leaves if leaf not in small)


def test_views_that_are_not_contiguous_arrive_by_value():
    state = {"turned": torch.arange(6.0).reshape(2, 3).T}
    assert torch.equal(travelled(state)["turned"], state["turned"])


def test_another_shape_is_an_error_that_names_the_key():
    manifest, _ = manifest_of({"model": {"0.weight": torch.ones(2, 3)}})
    with pytest.raises(ValueError, match=r"model\.0\.weight has the shape \(4, 3\) here, and \(2, 3\) at replica 5"):
        _target(manifest.leaves[0], torch.ones(4, 3), 5)


def test_what_does_not_pickle_is_an_error_that_says_where_it_hangs():
    with pytest.raises(TypeError, match=r"trainer\.hooks\.1 does not"):
        manifest_of({"trainer": {"weight": torch.ones(2), "hooks": [1, lambda: None]}})


def checksum_of(parts, pieces=1 << 20):
    checksum = Checksum()
    for number, part in enumerate(parts):
        for piece in part.split(pieces):
            checksum.add(number, piece)
    return checksum.text


def test_a_checksum_is_that_of_the_whole_whatever_the_pieces_and_wherever_they_lie():
    whole = torch.randint(256, (1003,), dtype=torch.uint8)
    shifted = torch.empty(1004, dtype=torch.uint8)[1:].copy_(whole)
    assert checksum_of([whole]) == checksum_of([whole], pieces=64) == checksum_of([shifted])


def test_any_changed_or_misplaced_part_shows_in_the_checksum():
    parts = [torch.arange(64, dtype=torch.uint8), torch.arange(13, dtype=torch.uint8)]
    whole = checksum_of(parts)
    changed = [one.clone() for one in parts]
    changed[0][63] += 1
    assert checksum_of(changed) != whole
    same = [torch.ones(16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)]
    assert checksum_of(same) != checksum_of(same[::-1])

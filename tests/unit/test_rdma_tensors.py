import pytest

torch = pytest.importorskip("torch")

from roost.errors import Unavailable  # noqa: E402
from roost.rdma.layout import Layout  # noqa: E402
from roost.rdma.leaves import Made, leaves, places, rebuilt, storages  # noqa: E402
from roost.rdma.lent import lend  # noqa: E402


def test_tensors_are_described():
    tensor = torch.zeros(4, 3, dtype=torch.bfloat16)
    assert lend(tensor[1:, ::2], "it").layout == Layout(0, (3, 2), (6, 4), 2, "bfloat16")
    assert lend(tensor[1:], "it").address == tensor.data_ptr() + 6
    assert lend(torch.zeros(()), "it").layout.shape == ()
    assert lend(torch.nn.Parameter(tensor), "it").layout.size == 24


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.empty(3, device="meta"), "on the device 'meta'"),
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "conjugated"),
    ],
)
def test_tensors_without_plain_memory_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        lend(make(), "dst")


def test_another_device_is_not_to_be_had(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "device", property(lambda _: torch.device("cuda", 0)))
    with pytest.raises(Unavailable, match=r"on the device cuda:0, which roost.rdma does not reach yet"):
        lend(torch.zeros(3), "dst")


def test_a_storage_that_was_freed_is_refused():
    tensor = torch.zeros(100)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="the storage of dst was freed"):
        lend(tensor, "dst")


def made_again(values):
    """What a reader makes, with the bytes copied as a transfer does."""
    structure, found = leaves(values)
    pieces, which, where = storages(found)
    made = Made([piece.size for piece in pieces], dict.fromkeys(which, "torch"))
    for piece, memory in zip(pieces, made.memory, strict=True):
        import ctypes

        ctypes.memmove(memory.data_ptr(), piece.address, piece.size)
    new = [made.look(number, "torch", layout) for number, layout in zip(which, where, strict=True)]
    return pieces, rebuilt(structure, new)


def test_storages_are_taken_once_and_shared_again():
    shared = torch.arange(24.0).reshape(4, 6)
    values = {
        "whole": shared,
        "column": shared[:, 2],
        "turned": shared.t(),
        "other": torch.ones(3),
        "ints": shared.view(torch.int32),
    }
    pieces, again = made_again(values)
    assert [piece.size for piece in pieces] == [24 * 4, 3 * 4]
    for name, value in values.items():
        assert torch.equal(again[name], value)
        assert again[name].stride() == value.stride()
    again["column"][0] = -1
    assert again["whole"][0, 2] == -1


def test_only_what_is_looked_at_is_taken():
    large = torch.zeros(1000)
    [piece], again = made_again([large[500:510]])
    assert piece.size < 200
    assert torch.equal(again[0], large[500:510])


def test_state_dicts_of_a_module_and_its_optimizer():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    values = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "none": torch.empty(0, 3),
        "step": torch.tensor(7),
    }
    _, again = made_again(values)
    assert again["none"].shape == (0, 3)
    assert again["step"] == 7
    assert again["optimizer"]["param_groups"] == values["optimizer"]["param_groups"]
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    fresh.load_state_dict(again["model"])
    torch.optim.Adam(fresh.parameters()).load_state_dict(again["optimizer"])
    for name, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value)


def test_paths_are_as_python_writes_them():
    structure, found = leaves({"a": [torch.ones(1), ({"b": torch.ones(2)},)], 3: torch.ones(3), "c": None})
    assert [leaf.path for leaf in found] == ["['a'][0]", "['a'][1][0]['b']", "[3]"]
    assert [path for path, _ in places(structure)] == [leaf.path for leaf in found]
    assert structure["c"] is None
    with pytest.raises(ValueError, match=r"\['a'\]\[0\] is on the device 'meta'"):
        leaves({"a": [torch.empty(1, device="meta")]})

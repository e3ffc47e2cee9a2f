"""Tensors become parts and come back the same."""

import warnings

import pytest

from roost import serialize
from roost.serialize import OUT_OF_BAND_BYTES_MIN, Parts

torch = pytest.importorskip("torch")

BASE = torch.arange(40_000.0)


def there_and_back(value):
    dumped = serialize.dumps(value)
    if isinstance(dumped, bytes):
        return serialize.loads(dumped)
    return serialize.loads(dumped.payload, buffers=[bytearray(buffer) for buffer in dumped.buffers])


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE.view(40, 1000),
        BASE.view(40, 1000).T,
        BASE[100:30_000:7],
        BASE.view(40, 1000).expand(3, 40, 1000),
        BASE.bfloat16(),
        BASE.half(),
        BASE.to(torch.float8_e4m3fn),
        torch.complex(BASE, BASE),
        torch.zeros(50_000, dtype=torch.bool),
        torch.tensor(3),
        torch.zeros(0, 3),
        torch.zeros(5, 0, dtype=torch.int8),
        BASE[:0],
        torch.ones(3),
    ],
    ids=lambda tensor: f"{tensor.dtype}{tuple(tensor.shape)}",
)
def test_tensors_arrive_equal_writable_and_private(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a buffer that it may not write to
        back = there_and_back(tensor)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert back.stride() == tensor.stride()
    assert torch.equal(
        back.float() if back.is_floating_point() else back, tensor.float() if tensor.is_floating_point() else tensor
    )
    if back.numel():
        assert back.data_ptr() != tensor.data_ptr()
        back.zero_() if back.stride()[:1] != (0,) else None


def test_gradients_are_asked_for_again():
    tensor = torch.ones(3, requires_grad=True)
    assert there_and_back(tensor).requires_grad
    made = (tensor * 2).sum()
    assert there_and_back(made.detach()) == 6


def test_parameters_and_modules():
    parameter = there_and_back(torch.nn.Parameter(BASE.clone(), requires_grad=False))
    assert type(parameter) is torch.nn.Parameter
    assert not parameter.requires_grad
    module = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
    module[0].tied = module[0].weight
    back = there_and_back(module)
    assert all(torch.equal(back.state_dict()[name], value) for name, value in module.state_dict().items())
    assert back[0].tied is back[0].weight
    assert isinstance(back[0].weight, torch.nn.Parameter)
    assert len(serialize.dumps(module.state_dict()).buffers) == 1  # the weight; all else is small


def test_views_of_one_storage_share_it_afterwards():
    base = BASE.clone()
    head, tail, whole = there_and_back([base[:20_000], base[15_000:], base])
    whole[17_000] = -1
    assert head[17_000] == -1
    assert tail[2_000] == -1
    assert len(serialize.dumps([base[:20_000], base]).buffers) == 1


def test_a_small_view_brings_only_its_part_of_the_storage():
    big = torch.arange(1_000_000, dtype=torch.int32)
    dumped = serialize.dumps({"one": big[500_000:510_000], "two": big[505_000:520_000], "three": big[505_000:505_001]})
    assert isinstance(dumped, Parts)
    assert sum(buffer.nbytes for buffer in dumped.buffers) <= 20_000 * 4 + 64
    back = there_and_back({"one": big[500_000:510_000], "two": big[505_000:520_000]})
    assert torch.equal(back["one"], big[500_000:510_000])
    assert torch.equal(back["two"], big[505_000:520_000])
    back["one"][5_000] = -1
    assert back["two"][0] == -1
    tiny = serialize.dumps(big[7:9])
    assert isinstance(tiny, bytes)
    assert len(tiny) < 500


def test_a_view_in_something_sent_by_value_is_narrowed_as_well():
    big = torch.arange(100_000)

    class Holder:
        def __init__(self, part):
            self.part = part

    def tell():
        return holder.part.sum().item()

    holder = Holder(big[10:20_000])
    dumped = serialize.dumps(tell)
    assert sum(buffer.nbytes for buffer in dumped.buffers) < 20_000 * 8
    assert there_and_back(tell)() == big[10:20_000].sum().item()


def test_other_tensors_go_the_way_that_torch_has_for_them():
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(there_and_back(sparse).to_dense(), sparse.to_dense())
    conjugate = torch.complex(BASE[:3], BASE[:3]).conj()
    assert torch.equal(there_and_back(conjugate), conjugate)
    assert there_and_back(torch.empty(3, device="meta")).device.type == "meta"
    named = torch.ones(2)
    named.label = "kept"
    assert there_and_back(named).label == "kept"

    class Mine(torch.Tensor):
        pass

    assert there_and_back(torch.float32) is torch.float32
    assert there_and_back(torch.device("cpu")) == torch.device("cpu")


def test_a_device_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    from roost import _arrays

    with pytest.raises(RuntimeError, match=r"cuda device.*send tensor.cpu\(\)"):
        _arrays.rebuild_storage(bytearray(8), "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_gpu_come_back_to_one():
    tensor = BASE.cuda()
    back = there_and_back([tensor, tensor[50:60]])
    assert back[0].device.type == "cuda"
    assert torch.equal(back[0], tensor)
    back[0][55] = -1
    assert back[1][5] == -1


def test_small_tensors_stay_in_the_pickle():
    assert isinstance(serialize.dumps(torch.zeros(OUT_OF_BAND_BYTES_MIN // 4 - 1)), bytes)
    assert isinstance(serialize.dumps(torch.zeros(OUT_OF_BAND_BYTES_MIN // 4)), Parts)

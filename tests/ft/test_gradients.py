import pytest

torch = pytest.importorskip("torch")

from roost.ft.gradients import Gradients  # noqa: E402


class Halves:
    """An average over two members, of which the other has zeros; it is there when it is waited for."""

    def __init__(self):
        self.sizes, self.open = [], 0

    def __call__(self, flat):
        self.sizes.append(flat.numel())
        self.open += 1
        return Half(self, flat)


class Half:
    def __init__(self, halves, flat):
        self.halves, self.flat = halves, flat

    def wait(self):
        self.halves.open -= 1
        self.flat.div_(2)


def made(backwards=1, bucket_bytes=1 << 20):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Linear(3, 3))
    halves = Halves()
    gradients = Gradients(torch.optim.SGD(model.parameters(), lr=1), halves, bucket_bytes, backwards)
    return model, halves, gradients


def backward(model, x):
    model[:3](x).sum().backward()


def plain(batches):
    """Gradients as torch adds them up."""
    model, _, _ = made()
    for x in batches:
        backward(model, x)
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]


def test_gradients_are_averages_when_backward_returns():
    model, halves, gradients = made()
    x = torch.randn(5, 4)
    gradients.begin()
    backward(model, x)
    assert halves.open == 0
    for one, whole in zip(model.parameters(), plain([x]), strict=True):
        assert torch.equal(one.grad, whole / 2)


def test_the_first_buckets_are_on_their_way_before_backward_is_over():
    model, halves, gradients = made(bucket_bytes=64)
    seen = []
    # The last layer is in no loss: its bucket comes first, and all others after it.
    model[3] = torch.nn.Identity()
    gradients = Gradients(torch.optim.SGD(model.parameters(), lr=1), halves, 64, 1)
    model[0].weight.register_hook(lambda _: seen.append(halves.open))
    gradients.begin()
    backward(model, torch.randn(5, 4))
    assert seen == [2]
    assert halves.sizes == [9, 8, 32]


def test_each_bucket_is_averaged_once_and_in_one_order_whatever_a_step_does():
    x = torch.randn(5, 4)
    orders = []
    for step in (
        lambda model: backward(model, x),
        lambda model: None,
        lambda model: model[3](x[:, :3]).sum().backward(),
    ):
        model, halves, gradients = made(bucket_bytes=40)
        gradients.begin()
        step(model)
        gradients.finish()
        orders.append(halves.sizes)
        assert halves.open == 0
    assert orders[0] == orders[1] == orders[2]
    assert sum(orders[0]) == sum(one.numel() for one in model.parameters())


def test_with_several_batches_a_step_gradients_travel_with_the_last():
    model, halves, gradients = made(backwards=2)
    batches = [torch.randn(5, 4), torch.randn(5, 4)]
    for _ in range(2):
        model.zero_grad()
        halves.sizes.clear()
        gradients.begin()
        backward(model, batches[0])
        assert halves.sizes == []
        backward(model, batches[1])
        for one, whole in zip(model.parameters(), plain(batches), strict=True):
            assert torch.allclose(one.grad, whole / 2)
        gradients.finish()


def test_one_backward_too_many_is_an_error_that_says_what_to_do():
    model, _, gradients = made()
    gradients.begin()
    backward(model, torch.randn(5, 4))
    with pytest.raises(RuntimeError, match=r"EveryStep\(backwards="):
        backward(model, torch.randn(5, 4))


def test_outside_of_a_step_with_others_nothing_is_averaged():
    model, halves, gradients = made()
    x = torch.randn(5, 4)
    gradients.begin()
    backward(model, x)
    gradients.finish()
    halves.sizes.clear()
    backward(model, x)
    backward(model, x)
    assert halves.sizes == []

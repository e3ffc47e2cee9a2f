"""The outer step of DiLoCo: how far a replica has come since the last sync, and what all make of that."""

from __future__ import annotations

from typing import Any

from roost import libraries
from roost.kernels.tensors import (
    check_dtype,
    check_formats,
    check_numbers,
    check_same_place,
    device_of,
    on_device,
    stream_of,
)
from roost.values import check_finite

__all__ = ["outer_step", "pseudo_gradient"]


def pseudo_gradient(outer: Any, local: Any, out: Any = None, *, dtype: Any = None) -> Any:
    """Where the outer parameters are, less where the inner steps have led.

    Args:
        outer: the outer parameters, torch.float32.
        local: this replica's own, in the same shape; torch.float32, bfloat16 or float16.
        out: where the result goes. Made when it is left out.
        dtype: of what is made; torch.float32 when left out.

    Returns:
        The result.

    Raises:
        TypeError: another dtype, or one half of a float in place of the other.
        ValueError: shapes or devices that differ, or what is not contiguous.
    """
    torch = libraries.torch()
    check_dtype("pseudo_gradient's", dtype)
    if out is None:
        check_numbers("outer", outer, only_f32=True)
        out = torch.empty_like(outer, dtype=torch.float32 if dtype is None else dtype)
    _check(outer=outer, local=local, out=out)
    kernels = device_of(outer)
    if kernels is None:
        with torch.no_grad():
            out.copy_(outer - local.float())
    elif outer.numel():
        kernels.pseudo_gradient(outer.data_ptr(), on_device(local), on_device(out), outer.numel(), stream_of(outer))
    return out


def outer_step(
    outer: Any,
    velocity: Any,
    local: Any,
    gradient: Any = None,
    *,
    learning_rate: float,
    momentum: float,
    share: float = 1.0,
) -> None:
    """One step of SGD with Nesterov's momentum on the outer parameters, which the replica's own are then set to.

    Each product and each sum is rounded by itself, so that CPU and GPU agree to the last bit.

    Args:
        outer: the outer parameters, torch.float32; changed in place.
        velocity: the momentum's state, torch.float32, zeros at first; changed in place.
        local: the replica's own parameters; overwritten.
        gradient: the sum of the replicas' pseudo-gradients. Left out, it is taken from `local`, which are the mean of all then.
        learning_rate: the outer one.
        momentum: Nesterov's, from 0 to 1.
        share: turns the sum into the mean: one by the number of replicas.

    Raises:
        TypeError: another dtype, or one half of a float in place of the other.
        ValueError: shapes or devices that differ, what is not contiguous, or a number that is not finite.
    """
    torch = libraries.torch()
    for name, value in (("learning_rate", learning_rate), ("momentum", momentum), ("share", share)):
        check_finite("outer_step", name, value)
    learning_rate, momentum, share = float(learning_rate), float(momentum), float(share)
    _check(outer=outer, velocity=velocity, local=local, gradient=gradient)
    kernels = device_of(outer)
    if kernels is None:
        with torch.no_grad():
            taken = outer - local.float() if gradient is None else gradient.float() * share
            velocity.copy_(velocity * momentum + taken)
            outer.copy_(outer - (taken + velocity * momentum) * learning_rate)
            local.copy_(outer)
    elif outer.numel():
        slope = (None, "f32") if gradient is None else on_device(gradient)
        places, step = (outer.data_ptr(), velocity.data_ptr()), (share, learning_rate, momentum)
        kernels.outer_step(places, on_device(local), slope, outer.numel(), step, stream_of(outer))


def _check(**tensors: Any) -> None:
    # Only a gradient may be left out.
    given: dict[str, Any] = {
        name: tensor for name, tensor in tensors.items() if tensor is not None or name != "gradient"
    }
    formats = {
        name: check_numbers(name, tensor, only_f32=name in ("outer", "velocity")) for name, tensor in given.items()
    }
    check_same_place(**given)
    shape = given["outer"].shape
    for name, tensor in given.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, and outer {tuple(shape)}")
    for name in {"out", "gradient"} & set(given):
        check_formats(f"local and {name}", formats["local"], formats[name])

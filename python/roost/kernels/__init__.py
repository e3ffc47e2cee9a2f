"""Kernels on torch's tensors: on a GPU where the tensors are there, with torch's own operations where they are on the CPU.

Both give the same bits, but for those that tell one NaN from another. A GPU's kernels are started in the order of torch's current
stream, as torch's are.
"""

from roost.kernels.buckets import pack, unpack
from roost.kernels.eight_bits import Quantised, dequantise, quantise
from roost.kernels.outer import outer_step, pseudo_gradient
from roost.kernels.sums import checksum

__all__ = ["Quantised", "checksum", "dequantise", "outer_step", "pack", "pseudo_gradient", "quantise", "unpack"]

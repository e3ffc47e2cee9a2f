"""The kernels of `hip/kernels`, compiled for the host, and what runs them on torch's tensors."""

import ctypes
import shutil
import subprocess
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "hip/kernels"
THREADS = 256


class Piece(ctypes.Structure):
    """`Piece` of pack.hip."""

    _fields_ = [("tensor", ctypes.c_void_p), ("start", ctypes.c_uint64), ("count", ctypes.c_uint64)]


class Kernels:
    """One build of them."""

    def __init__(self, folder: Path, sources: Path = KERNELS):
        library = folder / "kernels.so"
        # Products and sums stay apart, as on the cards: -ffp-contract=off is half of "the same bits".
        flags = [
            "-x",
            "c++",
            "-DROOST_ON_HOST",
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-fPIC",
        ]
        compiler = shutil.which("c++")
        assert compiler is not None
        command = [
            compiler,
            *flags,
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            str(sources / "roost.hip"),
            "-o",
            str(library),
        ]
        subprocess.run(command, check=True)
        self._run = ctypes.CDLL(str(library)).roost_host_run
        self._run.restype = ctypes.c_bool

    def run(self, name: str, *arguments, blocks: int = 3, only: tuple[int, int] | None = None):
        """Starts a kernel as a device would; `only` runs some blocks of the grid."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        first, end = only or (0, blocks)
        u32 = ctypes.c_uint32
        assert self._run(name.encode(), u32(blocks), u32(THREADS), u32(first), u32(end), pointers), name


def pointer(tensor) -> ctypes.c_void_p:
    """A tensor's address, as an argument."""
    return ctypes.c_void_p(tensor.data_ptr())


def u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


def u32(value: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(value)


def f32(value: float) -> ctypes.c_float:
    return ctypes.c_float(value)

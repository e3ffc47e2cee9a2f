"""The stand-ins of `hip/tests/standin` for a GPU's runtime and for RCCL, as ranks on the CPU speak through them."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import torch

from roost import gpus
from roost._roost import DeviceGroup
from roost.collectives import rccl

FAULTS = "ROOST_STANDIN"
_SOURCES = Path(__file__).parents[2] / "hip/tests/standin"
_FLAGS = {"libamdhip64.so.7": ("gpu.c", "-DROCM"), "librccl.so.1": ("nccl.c",)}


def build(folder):
    """Compile them; gives None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    for name, (source, *flags) in _FLAGS.items():
        command = [compiler, "-shared", "-fPIC", "-O1", "-pthread", *flags, _SOURCES / source, "-o", folder / name]
        subprocess.run(command, check=True)
    return str(folder)


def use(folder):
    """Have this process take them for what they stand in for, and tensors on the CPU for a GPU's."""
    os.environ["ROOST_GPU_PLATFORM"] = "rocm"
    for name in _FLAGS:
        ctypes.CDLL(f"{folder}/{name}")
    rccl._opened = lambda: (torch.device("cpu"), DeviceGroup(gpus.wanted(), 0))

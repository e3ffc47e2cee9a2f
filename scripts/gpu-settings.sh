#!/usr/bin/env bash
# What Roost says and does where a GPU's libraries are not there, or have no device behind them: the tests that ask for GPUs, in
# three settings. Tests of collectives bring stand-ins of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cc -shared -fPIC -O1 -pthread -DROCM -D DEVICES=0 hip/tests/standin/gpu.c -o "$folder/libamdhip64.so.7"

setting() {
    local name=$1
    shift
    echo "==> $name"
    env "$@" python -m roost.selftest
    env "$@" python -m pytest -q tests/unit/test_import.py tests/unit/test_doctor.py tests/kernels/test_python.py tests/collectives
}

setting "no library of ROCm's, or only what this machine has" ROOST_GPU_PLATFORM=rocm
setting "CUDA's and NCCL's libraries as wheels bring them, without a driver" ROOST_GPU_PLATFORM=cuda
setting "a HIP runtime without a device" ROOST_GPU_PLATFORM=rocm LD_LIBRARY_PATH="$folder"

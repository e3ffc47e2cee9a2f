#!/usr/bin/env bash
# scripts/cuda-toolchain.sh [FOLDER]: puts nvcc and CUDA's headers into FOLDER (target/cuda), out of NVIDIA's wheels.
#
# The kernels are HIP's; nvcc compiles the same sources, so that they can be run where there is an NVIDIA card and none of
# AMD's. The headers are what the test of `rocm_compat` reads.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
FOLDER=$(realpath -m "${1:-target/cuda}")
STAMP=$FOLDER/.complete-1
[ ! -e "$STAMP" ] || exit 0
say "fetching CUDA's compiler and headers from NVIDIA's wheels (once)"
rm -rf "$FOLDER"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --target "$FOLDER" \
    'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-cccl==13.0.*' \
    'nvidia-cuda-runtime==13.0.*' 'nvidia-nccl-cu13==2.29.*' ||
    fail "pip could not fetch CUDA's compiler (see above): is this machine online?"
# Wheels do not keep the bits that make a file a program.
chmod +x "$FOLDER"/nvidia/cu13/bin/* "$FOLDER"/nvidia/cu13/nvvm/bin/*
touch "$STAMP"

#!/usr/bin/env bash
# scripts/hip-toolchain.sh [FOLDER]: puts a compiler for HIP device code into FOLDER (target/hip), out of Debian's packages.
#
# Where ROCm is installed it is not needed: its hipcc is found by itself. This is for machines without: clang 22 and lld out
# of trixie, HIP's headers and the device libraries out of forky (bookworm's own stop at gfx90a), RCCL's header and library
# out of trixie. Nothing is installed: packages are unpacked, 900 MB of them (two thirds are RCCL's), and the machine's own apt sources stay as they are.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
# shellcheck source=scripts/debian.sh
. scripts/debian.sh
FOLDER=$(realpath -m "${1:-target/hip}")
STAMP=$FOLDER/.complete-2
[ ! -e "$STAMP" ] || exit 0

for tool in apt-get apt-cache dpkg-deb; do
    command -v "$tool" >/dev/null || fail "no '$tool' here: the HIP compiler comes out of Debian's packages. With ROCm installed, put its hipcc in PATH instead."
done
[ "$(uname -m)" = x86_64 ] || fail "the HIP compiler is fetched for x86_64 only; this is $(uname -m)."
ROOT=$FOLDER/root
LIBRARIES=$ROOT/usr/lib/x86_64-linux-gnu
LLVM=$ROOT/usr/lib/llvm-22
rm -rf "$FOLDER"
mkdir -p "$FOLDER"/bin "$ROOT"

# Bitcode of an older LLVM is readable by clang 22, that of a newer one is not.
device_libraries() {
    local newest
    newest=$(APT_CONFIG=$FOLDER/apt/forky/apt.conf apt-cache pkgnames rocm-device-libs- |
        sed -n 's/^rocm-device-libs-\([0-9]*\)$/\1/p' | awk '$1 <= 22' | sort -n | tail -n 1)
    [ -n "$newest" ] || fail "Debian's forky has no rocm-device-libs that LLVM 22 can read any more."
    echo "rocm-device-libs-$newest"
}

# These packages want a newer C library than the machine may have: each program is told to use the one unpacked beside it.
use_own_libraries() {
    local patchelf=patchelf
    if ! command -v patchelf >/dev/null; then
        unpack trixie "$FOLDER/patchelf" patchelf libc6 libstdc++6 libgcc-s1
        local own=$FOLDER/patchelf/usr/lib/x86_64-linux-gnu
        patchelf() { "$own/ld-linux-x86-64.so.2" --library-path "$own" "$FOLDER/patchelf/usr/bin/patchelf" "$@"; }
    fi
    for program in clang lld llvm-objdump llvm-readobj; do
        "$patchelf" --force-rpath --set-rpath "$LIBRARIES:$LLVM/lib" --set-interpreter "$LIBRARIES/ld-linux-x86-64.so.2" "$LLVM/bin/$program"
    done
    # Linked against HIP 5.7, which stands beside it in a folder of its own.
    "$patchelf" --force-rpath --set-rpath "$FOLDER/rccl/usr/lib/x86_64-linux-gnu" "$FOLDER"/rccl/usr/lib/x86_64-linux-gnu/librccl.so.1.0
}

MIRROR=$(mirror)
say "fetching a HIP compiler from Debian's packages (90 MB, once)"
open_suite trixie
open_suite forky
unpack trixie "$ROOT" clang-22 lld-22 llvm-22 libllvm22 libclang-cpp22 libclang-common-22-dev libc6 libstdc++6 libgcc-s1 \
    libedit2 libbsd0 libmd0 libtinfo6 zlib1g libzstd1 libxml2 liblzma5 libz3-4 libffi8
unpack forky "$ROOT/rocm" libamdhip64-dev "$(device_libraries)"
unpack trixie "$FOLDER/rccl" librccl1 librccl-dev libamdhip64-5 librocm-smi64-1 libhsa-runtime64-1 libamd-comgr2 libhsakmt1 \
    libllvm17t64 libnuma1 libdrm2 libdrm-amdgpu1 libelf1t64 libstdc++6 libgcc-s1 libc6 zlib1g libzstd1 libtinfo6 libedit2 \
    libbsd0 libmd0 libxml2 liblzma5 libffi8
use_own_libraries
BITCODE=$(dirname "$(find "$ROOT/rocm" -name ocml.bc -print -quit)")
# clang 22 dropped the macro of the wave's width that HIP 6's headers still read: 64 on every gfx9.
cat >"$FOLDER/bin/hipclang" <<WRAPPER
#!/bin/sh
exec "$LLVM/bin/clang++" -x hip --rocm-path="$ROOT/rocm/usr" --rocm-device-lib-path="$BITCODE" -D__AMDGCN_WAVEFRONT_SIZE=64 "\$@"
WRAPPER
chmod +x "$FOLDER/bin/hipclang"
ln -s "$LLVM/bin/llvm-objdump" "$LLVM/bin/llvm-readobj" "$FOLDER/bin/"
rm -rf "$FOLDER/apt" "$FOLDER/archives"
say "$("$FOLDER/bin/hipclang" --version | head -n 1)"
touch "$STAMP"

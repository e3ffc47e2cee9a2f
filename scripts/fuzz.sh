#!/usr/bin/env bash
# scripts/fuzz.sh SECONDS [TARGET...]: runs each target for so long; finds are left in fuzz/artifacts.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
need_rust
seconds=$1; shift
if ! command -v cargo-fuzz >/dev/null; then
    export PATH=$PWD/target/tools/bin:$PATH
    if [ ! -x target/tools/bin/cargo-fuzz ]; then
        say "installing cargo-fuzz into target/tools"
        cargo install cargo-fuzz --locked --quiet --root target/tools
    fi
fi
# Sanitizers are unstable flags; this lets the stable compiler take them.
export RUSTC_BOOTSTRAP=1
[ $# -gt 0 ] || mapfile -t targets < <(cargo fuzz list)
for target in "${@:-${targets[@]}}"; do
    say "fuzzing $target for $seconds s"
    cargo fuzz run "$target" -- -max_total_time="$seconds" -print_final_stats=1
done

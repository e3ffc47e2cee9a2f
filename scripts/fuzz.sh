#!/usr/bin/env bash
# scripts/fuzz.sh SECONDS INPUTS [TARGET...]: runs each target for so long or for so many inputs, whichever ends first (0: no
# end); finds are left in fuzz/artifacts.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
need_rust
seconds=$1 inputs=$2; shift 2
[ "$inputs" -gt 0 ] || inputs=-1
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
    say "fuzzing $target"
    options=(-max_total_time="$seconds" -runs="$inputs" -print_final_stats=1)
    # Two bytes a step, and no more steps are taken: what lies behind them would be changed for nothing.
    [ "$target" != session ] || options+=(-max_len=201)
    # What covers something new is kept for the next run, apart from the seeds.
    mkdir -p "fuzz/target/corpus/$target"
    cargo fuzz run "$target" "fuzz/target/corpus/$target" "fuzz/corpus/$target" -- "${options[@]}"
done

#!/usr/bin/env bash
# Counts the instructions of a round trip over the core with callgrind, and compares with benches/instructions.txt.
# The start is taken off by counting two lengths. UPDATE=1 writes the file anew.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
need_rust
command -v valgrind >/dev/null ||
    fail "valgrind is not here, and it counts the instructions (Debian, Ubuntu: apt-get install valgrind)."

baseline=benches/instructions.txt
cargo build --release --quiet --package roost-benches --bin hot-path
program=${CARGO_TARGET_DIR:-target}/release/hot-path

count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        awk '/Collected/ { print $4 }'
}

worse=0
counted=""
printf '%-18s %14s %10s\n' scenario instructions committed
for scenario in call window-of-100 call-with-4-KiB; do
    short=$(count "$scenario" 100)
    long=$(count "$scenario" 1100)
    now=$(((long - short) / 1000))
    before=$(awk -v name="$scenario" '$1 == name { print $2 }' "$baseline" 2>/dev/null || true)
    printf '%-18s %14d %10s\n' "$scenario" "$now" "${before:-none}"
    counted+="$scenario $now"$'\n'
    if [ -n "$before" ] && [ "$now" -gt $((before * 110 / 100)) ]; then worse=1; fi
done

if [ -n "${UPDATE:-}" ] || [ ! -e "$baseline" ]; then
    printf "%s" "$counted" >"$baseline"
    say "wrote $baseline"
elif [ "$worse" = 1 ]; then
    fail "the hot path takes over 10 % more instructions than committed. When that is what you want: UPDATE=1 make check-instructions."
else
    say "within 10 % of $baseline"
fi

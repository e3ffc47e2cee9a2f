# Sourced by the other scripts: finds what the build needs, or ends with a sentence that says what to install.
# shellcheck shell=bash disable=SC2034

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf '\nroost: %s\n' "$*" >&2; exit 1; }

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
VENV=$PWD/.venv

# rustup's cargo asks $HOME/.rustup for the compiler. With another HOME (a container, a test) it lies beside the cargo that PATH names.
locate_rustup() {
    [ -z "${RUSTUP_HOME:-}" ] || return 0
    [ -z "$(ls -A "$HOME/.rustup/toolchains" 2>/dev/null)" ] || return 0
    local cargo beside
    cargo=$(command -v cargo) || return 0
    beside=$(dirname "$(dirname "$(dirname "$cargo")")")/.rustup
    if [ -d "$beside/toolchains" ]; then export RUSTUP_HOME=$beside; fi
}

need_linux() {
    [ "$(uname -s)" = Linux ] || fail "Roost runs on Linux (memfd, pidfd and SEQPACKET sockets are Linux's); this is $(uname -s)."
}

need_rust() {
    command -v cargo >/dev/null ||
        fail "no Rust found: 'cargo' is not in PATH. Install stable Rust (https://rust-lang.org/tools/install), open a new shell, and run make again."
    local version
    version=$(cargo --version 2>&1) ||
        fail "cargo is in PATH but does not run: ${version%%$'\n'*}. Set RUSTUP_HOME to where rustup keeps its toolchains, or run 'rustup default stable'."
    local found wanted
    found=$(rustc --version | awk '{print $2}')
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    [ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
        fail "Rust $found is too old: Roost needs $wanted or newer. Run 'rustup update stable' and run make again."
}

need_c_compiler() {
    local cc=${CC:-cc}
    command -v "$cc" >/dev/null ||
        fail "no C compiler found: Rust links with '$cc'. Install one (Debian, Ubuntu: apt-get install gcc libc6-dev; Fedora: dnf install gcc), and run make again."
    echo 'int main(void) { return 0; }' | "$cc" -x c - -o /dev/null 2>/dev/null ||
        fail "the C compiler '$cc' cannot link a program: the C library's headers are missing (Debian, Ubuntu: apt-get install libc6-dev), and run make again."
}

is_good_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11) or sys.implementation.name != "cpython")' >/dev/null 2>&1
}

# Sets PYTHON to an interpreter that can make virtual environments.
need_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        is_good_python "$PYTHON" || fail "PYTHON=$PYTHON is not CPython 3.11 or newer."
    else
        for candidate in python3 python3.13 python3.12 python3.11 python3.14; do
            if is_good_python "$candidate"; then PYTHON=$candidate; break; fi
        done
        [ -n "${PYTHON:-}" ] ||
            fail "no CPython 3.11 or newer found in PATH. Install one, or name it: make PYTHON=/path/to/python3.12 …"
    fi
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON cannot make a virtual environment (Debian, Ubuntu: apt-get install python3-venv), and run make again."
}

locate_rustup

#!/usr/bin/env bash
# scripts/setup.sh PART...: makes each part ready, and does nothing when nothing changed since it last did.
#   extras of pyproject.toml (test, dev, demo, torch)   installed into .venv
#   extension                                           the Rust module, built quickly and put beside python/roost
#   released                                            the same, built as the wheel's is: for what is measured
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
STAMPS=$VENV/.stamps
EXTENSION=python/roost/_roost.abi3.so

stamped() { [ "$(cat "$STAMPS/$1" 2>/dev/null)" = "$2" ]; }
stamp() { printf '%s' "$2" >"$STAMPS/$1"; }

# A virtual environment names its own folder in its scripts, so a copied or moved one is made again.
make_venv() {
    if [ -x "$VENV/bin/python" ] && stamped home "$VENV" && is_good_python "$VENV/bin/python" &&
        { [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" --version)" = "$("$VENV/bin/python" --version)" ]; }; then return; fi
    need_python
    say "making .venv with $("$PYTHON" --version) ($(command -v "$PYTHON"))"
    "$PYTHON" -m venv --clear "$VENV"
    mkdir -p "$STAMPS"
    stamp home "$VENV"
}

install_extra() {
    local wanted
    wanted=$("$VENV/bin/python" scripts/requirements.py "$1")
    if stamped "$1" "$wanted"; then return; fi
    say "installing what '$1' needs: ${wanted//$'\n'/ }"
    [ "$1" != torch ] || say "torch with its libraries is some gigabytes; this happens once"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r <(echo "$wanted") ||
        fail "pip could not install what '$1' needs (see above): is this machine online?"
    stamp "$1" "$wanted"
}

rust_key() {
    { find rust hip Cargo.toml Cargo.lock pyproject.toml -type f \( -name '*.rs' -o -name '*.hip' -o -name '*.h' -o -name '*.toml' -o -name '*.lock' \) -print0 |
        sort -z | xargs -0 sha256sum
      rustc --version; } | sha256sum
}

# build_extension PROFILE: the released one serves where the quick one is asked for.
build_extension() {
    local key
    key=$(rust_key)
    if [ -e "$EXTENSION" ] && { stamped extension "$1 $key" || stamped extension "release $key"; }; then return; fi
    install_extra dev
    say "building the Rust extension (profile '$1'; a minute or two the first time)"
    PIP_QUIET=1 VIRTUAL_ENV=$VENV "$VENV/bin/maturin" develop --profile "$1" ||
        fail "the Rust extension did not build (see above)."
    # Cargo.lock may have been written by this very build.
    stamp extension "$1 $(rust_key)"
}

need_linux
# What is missing is said before anything is downloaded.
if [[ " $* " =~ \ (extension|released)\  ]]; then
    need_rust
    [ -e "$EXTENSION" ] || need_c_compiler
fi
make_venv
for part; do
    case $part in
        extension) build_extension quick ;;
        released) build_extension release ;;
        *) install_extra "$part" ;;
    esac
done

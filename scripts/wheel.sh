#!/usr/bin/env bash
# Builds the wheel against an old C library (zig brings one), then tries it in a fresh environment of each CPython that is here.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
need_rust
need_python
"$VENV/bin/python" -c 'import ziglang' 2>/dev/null || "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check 'ziglang>=0.13'
say "building the wheel"
rm -rf dist
maturin build --release --zig --compatibility manylinux_2_28 --out dist
wheel=$(echo dist/*.whl)

interpreters=()
for version in 3.11 3.12 3.13 3.14; do
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        if is_good_python "$candidate" && "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')"; then
            interpreters+=("$candidate")
            break
        fi
    done
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for interpreter in "${interpreters[@]}"; do
    say "trying $wheel on $("$interpreter" --version)"
    "$interpreter" -m venv "$folder/venv" --clear
    "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
    # Away from the source tree, so that the installed package is the one that is imported.
    (cd "$folder" && ./venv/bin/python -I "$OLDPWD/tests/wheel/smoke.py")
done
say "$wheel works on ${#interpreters[@]} interpreters"

#!/usr/bin/env bash
# scripts/skypilot.sh COMMAND...: runs it in an environment of its own that has SkyPilot's SDK (some 460 MB, made once) and the tests'
# requirements: what else is in .venv stays as it is. Roost itself is this tree's.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
FOLDER=target/skypilot
wanted=$(for extra in test skypilot; do "$VENV/bin/python" scripts/requirements.py "$extra"; done)
if [ "$(cat "$FOLDER/.complete" 2>/dev/null)" != "$wanted" ]; then
    say "installing SkyPilot's SDK into $FOLDER; this happens once"
    "$VENV/bin/python" -m venv --clear "$FOLDER"
    "$FOLDER/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r <(echo "$wanted") ||
        fail "pip could not install SkyPilot's SDK (see above): is this machine online?"
    echo "$wanted" >"$FOLDER/.complete"
fi
# What it keeps, it keeps there; and it tells nobody.
export HOME=$PWD/$FOLDER/home SKYPILOT_DISABLE_USAGE_COLLECTION=1 PYTHONPATH=$PWD/python PATH=$PWD/$FOLDER/bin:$PATH
mkdir -p "$HOME"
exec "$@"

#!/usr/bin/env bash
# scripts/run.sh COMMAND...: runs it with .venv first in PATH and with the Rust toolchain found.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
export VIRTUAL_ENV=$VENV PATH=$VENV/bin:$PATH
exec "$@"

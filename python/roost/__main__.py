"""`python -m roost`: what one types on a host."""

from __future__ import annotations

import sys

from roost.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""What procs preload whose lanes are as between hosts: see `apart`."""

from apart import patches

_stack = patches()

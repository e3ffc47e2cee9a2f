"""The seam to the data lane: what Rust takes by name is what the protocol says."""

from roost._roost import HOOKS
from roost.hooks import Hooks


def test_the_protocol_names_each_hook_and_no_other():
    members = {name for name in vars(Hooks) if not name.startswith("_")}
    assert sorted(HOOKS) == sorted(members)
    assert len(HOOKS) == len(set(HOOKS))

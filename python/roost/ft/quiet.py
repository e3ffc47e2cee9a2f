"""Imported by templates before anything else: libraries would complain of groups and stores that are ended on purpose."""

import os

for _name, _value in (("TORCH_CPP_LOG_LEVEL", "ERROR"), ("RUST_LOG", "warn")):
    os.environ.setdefault(_name, _value)

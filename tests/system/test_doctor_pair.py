"""`roost doctor --pair A B` between two agents."""

import json
import subprocess
import sys

from agents import agents


def test_a_pair_of_hosts_is_measured(tmp_path):
    with agents(tmp_path, 2, "--listen", "127.0.0.1:0") as (pair, key):
        command = ["doctor", "--json", "--pair", *(agent.address for agent in pair), "--key-file", str(key)]
        said = subprocess.run([sys.executable, "-m", "roost", *command], check=False, capture_output=True, text=True)
        assert "Traceback" not in said.stderr
        measured = json.loads(said.stdout)["pair"]
        assert (measured["from"], measured["to"]) == ("host0", "host1")
        # The way is said, and where it is not ibverbs, why.
        assert measured["backend"] == "ibverbs" or "since ibverbs cannot be used" in said.stderr
        assert [read["bytes"] for read in measured["reads"]] == [4096, 1 << 20, 64 << 20]
        assert all(read["gigabytes_per_s"] > 0 for read in measured["reads"])

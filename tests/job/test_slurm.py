"""`SlurmJob` on a real Slurm: four nodes, each with its own name, address and processes (`scripts/mini_slurm.py`)."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("on_slurm.py")
MINI_SLURM = ROOT / "scripts" / "mini_slurm.py"
NEEDED = ["slurmctld", "slurmd", "srun", "munged", "ip", "unshare", "nsenter", "pgrep"]
LACKING = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="a Slurm cluster of namespaces needs root"),
    pytest.mark.skipif(bool(LACKING), reason=f"no {', '.join(LACKING)}: `make test-slurm` installs Slurm"),
    pytest.mark.timeout(120),
]


class Cluster:
    """A cluster that runs, and the shell of a user on its login node."""

    def __init__(self, folder):
        self.folder = folder

    def command(self, what, *arguments):
        return [sys.executable, str(MINI_SLURM), what, str(self.folder), *map(str, arguments)]

    def program(self, name, folder, *arguments, user=(), python=sys.executable):
        return self.command("exec", "login", *user, python, PROGRAM, name, folder, *arguments)

    def run(self, name, folder, *arguments):
        """What a program of `on_slurm.py` saw."""
        environment = {**os.environ, "HOME": str(folder.parent)}
        done = subprocess.run(
            self.program(name, folder, *arguments), env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def cluster():
    # Another user comes in here, too, which pytest's own folders do not allow.
    with tempfile.TemporaryDirectory(prefix="roost-slurm-") as folder:
        os.chmod(folder, 0o755)
        found = Cluster(Path(folder, "cluster"))
        # A run of the tests that is killed leaves none of it, either.
        subprocess.run([*found.command("start"), "--while", str(os.getpid())], check=True)
        try:
            yield found
        finally:
            subprocess.run(found.command("stop"), check=True)


def test_from_nothing_to_a_call_on_four_nodes_and_again_from_a_new_process(cluster, tmp_path, figures):
    seen = cluster.run("first_call", tmp_path / "job")
    assert seen["names"] == ["n1", "n2", "n3", "n4"]
    figures(f"apply to first call on 4 nodes: {seen['seconds_since_grant']:.1f} s after they were granted")
    again = cluster.run("once_more", tmp_path / "job")
    assert again["folders"] == [str(tmp_path / "job")] * 3
    assert again["names"] == seen["names"]
    kind, _, reason = again["last"]
    assert (kind, reason.startswith("CANCELLED")) == ("ended", True)


def test_a_node_that_dies_is_one_event_with_slurms_reason_and_the_others_go_on(cluster, tmp_path, figures):
    seen = cluster.run("node_dies", tmp_path / "job", *cluster.command("kill", "n3"))
    subprocess.run(cluster.command("boot", "n3"), check=True)
    assert len(seen["lost"]) == 1, seen["lost"]
    [(_, node, reason)] = seen["lost"]
    assert node == "n3"
    # Whoever notices first: Slurm, or the end of its agent's signs of life.
    assert "Slurm: node n3 is" in reason
    assert seen["left"] == ["n1", "n2", "n4"]
    assert seen["error"].startswith("HostLostError")
    assert "Slurm: node n3 is" in seen["error"], "callers hear of it, too"
    figures(f"a node without power was an event after {seen['seconds']:.1f} s: {reason}")


def test_who_is_preempted_is_started_again(cluster, tmp_path):
    seen = cluster.run("preempted", tmp_path / "job")
    assert seen["before"][0] == 0
    assert seen["after"] == [1, seen["before"][1]]
    # Whether it was looked at while it waited depends on who is quicker, and which of its hosts were seen; that it ran, on nothing.
    story = [kind for kind in seen["kinds"] if kind not in ("host_up", "host_lost", "pending")]
    assert story == ["running", "preempted", "requeued", "running", "ended"]


def test_two_meshes_with_their_own_nodes_and_a_warning_of_the_end(cluster, tmp_path):
    seen = cluster.run("two_meshes", tmp_path / "job")
    assert seen["gpus"] == ["0", "0"]
    assert len(set(seen["names"])) == 3
    number = seen["ids"][0].partition("+")[0]
    assert seen["ids"] == [f"{number}+0", f"{number}+1"]


USERS = {0: [], 65534: ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]}
FOR_ALL = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{sysconfig.get_paths()['purelib']}"}


def interpreter_for_all():
    """One with which any user can run Roost: this may lie in somebody's home."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        # By a shell: what setpriv starts itself may be what that user could not start.
        command = [*USERS[65534], "sh", "-c", 'exec "$0" -c "import roost.runtime"', path]
        if subprocess.run(command, env=FOR_ALL, check=False, capture_output=True, cwd="/").returncode == 0:
            return path
    pytest.skip("another user can use no interpreter here that has Roost")


def test_two_users_share_nodes(cluster):
    python = interpreter_for_all()
    running = []
    for number, user in USERS.items():
        home = cluster.folder.parent / str(number)
        home.mkdir()
        os.chown(home, number, number)
        command = cluster.program("neighbour", home / "job", user=user, python=python)
        running.append(
            subprocess.Popen(
                command,
                env={**FOR_ALL, "HOME": str(home)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=home,
            )
        )
    seen = [one.stdout.readline() for one in running]
    ended = [one.communicate()[0] for one in running]
    assert [json.loads(line) for line in seen] == [{"names": ["n1", "n2"], "user": number} for number in USERS]
    assert [json.loads(text) for text in ended] == [{"state": "ended"}] * 2


def test_a_job_that_brings_its_driver_ends_with_it(cluster, tmp_path):
    seen = cluster.run("batch", tmp_path / "job")
    assert (seen["state"], seen["reason"]) == ("ended", "COMPLETED")
    said = [line for line in seen["log"] if line.startswith("{")]
    assert json.loads(said[0]) == {"on": "n1", "names": ["n1", "n2"]}


@pytest.mark.parametrize("starter", ["salloc", "srun"])
def test_in_an_allocation_that_is_there_already(cluster, tmp_path, starter):
    given = cluster.command(
        "exec", "login", starter, "--nodes=2", "--ntasks=2", sys.executable, PROGRAM, "allocation", "-"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(given, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [seen] = map(json.loads, done.stdout.splitlines())
    assert (seen["names"], seen["state"], seen["failed"]) == (["n1", "n2"], "ended", False)
    assert "has the nodes that it has" in seen["said"]
    assert (seen["from"] == "n1") == (starter == "srun"), "salloc's program runs where it was called"


def test_what_is_refused_is_told_in_slurms_words(cluster, tmp_path):
    seen = cluster.run("refused", tmp_path / "job")
    assert seen["partition"].startswith("JobError: sbatch refuses: invalid partition specified: nope")
    assert "Invalid generic resource (gres) specification" in seen["gres"]
    assert "unrecognized option '--bogus'" in seen["option"]
    assert seen["many"].startswith(
        "CallTimeoutError: 0 of 9 hosts of many listen after 1 s. Missing: trainers[0-8] missing (PENDING ("
    )


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="no torchft: `make demo-slurm` installs it")
def test_training_outlives_a_node_that_loses_its_power(cluster, tmp_path):
    command = [sys.executable, ROOT / "examples" / "demo", "--slurm", "--quick", "--out", tmp_path / "demo.png"]
    environment = {**os.environ, "MINI_SLURM": str(cluster.folder)}
    done = subprocess.run(
        cluster.command("exec", "login", *command), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ failures: .*power loss of a node", done.stdout, re.MULTILINE)
    assert re.search(r"was lost on host n\d.*Slurm: node n\d is", done.stderr), (
        "the proc's own failure, in Slurm's words"
    )
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")

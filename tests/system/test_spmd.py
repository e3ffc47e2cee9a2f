"""Scripts that were written for torchrun, and commands, on a mesh of procs."""

import asyncio
import importlib.util
import json
import signal

import pytest
from loops import on_a_loop, process_state

from roost import Actor, ActorDied, MeshError, ProcessHosts, endpoint, spmd, this_host

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(90)]

SCRIPT = """\
import asyncio, json, os, signal, sys, time
import beside
asyncio.run(asyncio.sleep(0))  # it may have a loop of its own
rank, life = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MODE")
path = f"{sys.argv[1]}/{life}.{rank}"
with open(f"{path}.new", "w") as file:
    json.dump([[os.environ.get(name) for name in names], sys.argv[2:], __name__, os.getpid()], file)
os.replace(f"{path}.new", path)
"""
TRAINING = """\
import os, signal, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, total = dist.get_rank(), torch.ones(1)
dist.all_reduce(total)
if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total)
open(f"{sys.argv[1]}/{rank}", "w").write(str(total.item()))
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script, with a module beside it."""
    (tmp_path / "beside.py").touch()

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def seen(folder, life, ranks):
    return [json.loads((folder / f"{life}.{rank}").read_text()) for rank in range(ranks)]


@on_a_loop
async def test_each_rank_has_torchruns_environment(script, tmp_path):
    async with ProcessHosts(2) as hosts, hosts.spawn_procs({"gpus": 2}) as procs:
        codes = await spmd.run(procs, script(SCRIPT), [str(tmp_path), "--lr=1"], env={"MODE": "test"})
        assert (list(codes), codes.sizes) == ([0] * 4, {"hosts": 2, "gpus": 2})
    ranks = seen(tmp_path, 0, 4)
    port = ranks[0][0][6]
    assert [rank[:3] for rank in ranks] == [
        [[str(rank), str(rank % 2), str(rank // 2), "4", "2", "127.0.0.1", port, "test"], ["--lr=1"], "__main__"]
        for rank in range(4)
    ]


class Foreman(Actor):
    """Was handed hosts."""

    @endpoint
    async def run(self, hosts, path, arguments):
        async with hosts.spawn_procs() as procs:
            return list(await spmd.run(procs, path, arguments))


@on_a_loop
async def test_who_was_handed_hosts_runs_scripts_there_by_the_addresses_that_the_driver_knows(script, tmp_path):
    async with ProcessHosts(2) as hosts, this_host().spawn_procs() as near:
        foreman = near.spawn("foreman", Foreman)
        assert await foreman.run.call_one(hosts, script(SCRIPT), [str(tmp_path)]) == [0, 0]
    assert [rank[0][5] for rank in seen(tmp_path, 0, 2)] == ["127.0.0.1"] * 2


@on_a_loop
async def test_all_start_anew_when_one_fails(script, tmp_path):
    failing = f"""{SCRIPT}
while rank and not os.path.exists(f"{{sys.argv[1]}}/{{life}}.0"):
    time.sleep(0.01)
if life == "0":
    signal.pause() if rank == 0 else print("no luck", 1 / 0)
"""
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        assert list(await spmd.run(procs, script(failing), [str(tmp_path)], restarts=1)) == [0, 0]
        first, second = (seen(tmp_path, life, 2) for life in (0, 1))
        assert {rank[0][6] for rank in first}.isdisjoint(rank[0][6] for rank in second), "another port"
        assert list(await spmd.run(procs, script(failing), [str(tmp_path)])) == [-15, 1]
        quits = f"{SCRIPT}sys.exit(3 if rank else None)\n"
        assert list(await spmd.run(procs, script(quits), [str(tmp_path)]))[1] == 3
        killed = f"{SCRIPT}if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\nsignal.pause()\n"
        assert list(await spmd.run(procs, script(killed), [str(tmp_path)])) == [-9, -15]
        dies = f"{SCRIPT}if rank == 1: os.kill(os.getppid(), signal.SIGKILL)\nsignal.pause()\n"
        with pytest.raises(ActorDied) as death:
            await spmd.run(procs, script(dies), [str(tmp_path)])
        assert death.value.failure.signal == signal.SIGKILL


@pytest.mark.slow
@pytest.mark.timeout(120)
# Not imported here: torch starts threads.
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
@on_a_loop
async def test_a_training_script_runs_unchanged_and_outlives_a_kill(script, tmp_path):
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        assert list(await spmd.run(procs, script(TRAINING), [str(tmp_path)], restarts=1)) == [0, 0]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["4.0", "4.0"]


def test_what_cannot_be_run_is_refused_at_once(tmp_path, script):
    with pytest.raises(FileNotFoundError, match="there is no script"):
        spmd.run(None, tmp_path / "nope.py")
    with pytest.raises(TypeError, match="a list of texts"):
        spmd.run(None, script(""), "--lr=1")
    with pytest.raises(ValueError, match="restarts=-1"):
        spmd.run(None, script(""), restarts=-1)


@on_a_loop
async def test_a_command_on_each_proc(capfd):
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        shell = "echo $MODE in $PWD; exit $((3 + 1))"
        assert list(await procs.exec(["sh", "-c", shell], env={"MODE": "test"}, cwd="/")) == [4, 4]
        assert list(await procs.exec(["sh", "-c", "kill -9 $$"])) == [-9, -9]
        with pytest.raises(MeshError) as error:
            await procs.exec(["/nope"])
        assert isinstance(error.value.exceptions[0], FileNotFoundError)
        for wrong in ("true", [], 3, None, [1], b"true"):
            with pytest.raises(TypeError, match="give a list"):
                procs.exec(wrong)
    assert "[procs[gpus=1]] test in /\n" in capfd.readouterr().out


@on_a_loop
async def test_a_command_that_nobody_waits_for_ends(tmp_path):
    async with this_host().spawn_procs() as procs:
        reply = procs.exec(["sh", "-c", f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 600"])
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        reply.cancel()
        while process_state((tmp_path / "pid").read_text().strip()) not in "XZ":
            await asyncio.sleep(0.01)

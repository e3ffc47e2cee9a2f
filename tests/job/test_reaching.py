"""What goes between this program and a job's hosts besides calls: a folder's files, a port's connections."""

import asyncio
import logging
import os

import pytest
from loops import on_a_loop

from roost import ProcessHosts
from roost.errors import JobError, StoppedError
from roost.job import ProcessJob
from roost.job.sync import push

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]


def tree(folder):
    """Path, mode, content of all that is in a folder."""
    found = {}
    for where, folders, names in os.walk(folder):
        for name in [*names, *folders]:
            path = os.path.join(where, name)
            if os.path.islink(path):
                found[os.path.relpath(path, folder)] = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, folder)] = os.stat(path).st_mode, file.read()
    return found


@on_a_loop
async def test_a_folder_is_had_elsewhere_and_only_what_changed_is_sent(tmp_path, caplog):
    caplog.set_level(logging.INFO, "roost.job")
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "package").mkdir(parents=True)
    (here / "package" / "big.bin").write_bytes(os.urandom(9 << 20))
    (here / "train.py").write_text("first")
    (here / "train.py").chmod(0o755)
    (here / "empty").touch()
    (here / "link").symlink_to("train.py")
    expected = tree(here)
    for hidden in (".git", "__pycache__"):
        (here / hidden).mkdir()
        (here / hidden / "x").touch()
    async with ProcessHosts(1) as hosts:
        await push(hosts, str(here), str(there))
        assert tree(there) == expected
        (there / "kept").write_text("an output")
        (here / "train.py").write_text("2nd..")
        (there / "empty").write_text("changed there")
        caplog.clear()
        await push(hosts, str(here), str(there))
        assert tree(there) == {**expected, "train.py": (expected["train.py"][0], b"2nd.."), "kept": tree(there)["kept"]}
        assert ": 2 of 4 files sent to 1 hosts in" in caplog.text
        (there / "train.py").unlink()
        (there / "train.py").mkdir()
        with pytest.raises(JobError, match=r"cannot be written there: .*Is a directory"):
            await push(hosts, str(here), str(there))
        (tmp_path / "file").touch()
        with pytest.raises(JobError, match=r"cannot be written there: .*(NotADirectoryError|FileExistsError)"):
            await push(hosts, str(here), str(tmp_path / "file"))


@on_a_loop
async def test_a_job_syncs_its_folder_and_forwards_ports(tmp_path, caplog):
    caplog.set_level(logging.INFO, "roost.job")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    job = ProcessJob({"trainers": 1}, name="j", folder=tmp_path / "j", sync=tmp_path / "code")
    await job.apply()
    try:
        async with await job.state() as hosts, await asyncio.start_server(shout, "127.0.0.1", 0) as server:
            assert "0 of 1 files" in caplog.text, "it is there already: the host is this one"
            port = server.sockets[0].getsockname()[1]
            async with hosts.forward("trainers", 0, port) as here:
                reader, writer = await asyncio.open_connection("127.0.0.1", here)
                sent = os.urandom(1 << 20).hex().encode()
                writer.write(sent)
                writer.write_eof()
                assert await reader.read() == sent.upper()
                writer.close()
                open_one, writer = await asyncio.open_connection("127.0.0.1", here)
            assert await open_one.read() == b"", "the end of the block is that of its connections"
            writer.close()
            server.close()
            await server.wait_closed()
            async with hosts.forward("trainers", 0, port) as here:
                reader, writer = await asyncio.open_connection("127.0.0.1", here)
                assert await reader.read() == b"", "nobody listens there"
                writer.close()
            with pytest.raises(ValueError, match="is above 65535"):
                await hosts.forward("trainers", 0, 65536).__aenter__()
    finally:
        await job.kill()


async def shout(reader, writer):
    writer.write((await reader.read()).upper())
    await writer.drain()
    writer.close()


def test_what_is_no_folder_cannot_be_synced(tmp_path):
    with pytest.raises(ValueError, match="is no folder"):
        ProcessJob({"trainers": 1}, sync=tmp_path / "nowhere")


@on_a_loop
async def test_who_could_not_enter_all_meshes_of_a_job_has_let_go_of_it(tmp_path):
    job, other = (ProcessJob({"trainers": 1, "judges": 1}, name="j", folder=tmp_path / "j") for _ in range(2))
    await job.apply()
    try:
        hosts = await job.state()
        await hosts.judges.stop()
        with pytest.raises(StoppedError):
            await hosts.__aenter__()
        assert [one.state for one in (await hosts.trainers.states()).values()] == ["stopped"]
        async with await other.state() as again:
            assert len(again) == 2
    finally:
        await job.kill()

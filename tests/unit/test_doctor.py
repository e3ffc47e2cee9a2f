import json
import os
import struct

import pytest

from roost.cli import main
from roost.cli.device_checks import device_checks
from roost.cli.doctor import examine
from roost.cli.findings import System
from roost.cli.host_checks import dma_buf, host_checks, huge_pages, iommu, memlock, ptrace
from roost.cli.pci import acs, distances
from roost.cli.xgmi import xgmi

NIC_PLACE = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"
GPUS = {
    "0000:04:00.0": "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0",
    "0000:05:00.0": "/sys/devices/pci0000:00/0000:00:02.0/0000:05:00.0",
    "0000:85:00.0": "/sys/devices/pci0000:80/0000:80:01.0/0000:85:00.0",
}


class Fake(System):
    """A machine made of a few files."""

    def write(self, path, text=""):
        where = self.path(path)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())

    def link(self, path, to):
        where = self.path(path)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        os.makedirs(self.path(to), exist_ok=True)
        os.symlink(os.path.relpath(self.path(to), os.path.dirname(where)), where)


@pytest.fixture
def system(tmp_path):
    return Fake(str(tmp_path))


@pytest.fixture
def with_nic(system):
    """One port of RoCE, in order, and three GPUs: near, on the same root, on the other processor."""
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    system.write(f"{port}/state", "4: ACTIVE\n")
    system.write(f"{port}/link_layer", "Ethernet\n")
    system.write(f"{port}/rate", "400 Gb/sec (4X NDR)\n")
    system.write(f"{port}/gids/0", "fe80:0000:0000:0000:0e42:a1ff:fe00:0000\n")
    system.write(f"{port}/gid_attrs/types/0", "IB/RoCE v1\n")
    system.write(f"{port}/gids/3", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n")
    system.write(f"{port}/gid_attrs/types/3", "RoCE v2\n")
    system.write(f"{port}/gid_attrs/ndevs/3", "eth2\n")
    system.write("/sys/class/net/eth2/mtu", "9000\n")
    system.write("/dev/infiniband/uverbs0")
    system.write(
        "/proc/self/limits",
        "Limit  Soft Limit\nMax locked memory         unlimited            unlimited            bytes\n",
    )
    system.write("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
    system.link("/sys/class/infiniband/mlx5_0/device", NIC_PLACE)
    for name, place in {"0000:03:00.0": NIC_PLACE, **GPUS}.items():
        system.link(f"/sys/bus/pci/devices/{name}", place)
        system.write(f"{place}/numa_node", "1\n" if name.startswith("0000:8") else "0\n")
        system.write(f"{place}/class", "0x020700\n" if place is NIC_PLACE else "0x120000\n")
        system.write(f"{place}/vendor", "0x15b3\n" if place is NIC_PLACE else "0x1002\n")
    return system


def levels(findings):
    return {finding.check: finding.level for finding in findings}


def test_without_devices_it_says_what_is_used_instead(system):
    [finding] = device_checks(system)
    assert finding.level == "note"
    assert "TCP" in finding.text
    assert "ib_uverbs" in finding.fix


def test_a_host_in_order_has_nothing_to_be_done(with_nic):
    found = [finding for finding in examine(with_nic) if finding.check not in ("libibverbs", "distance")]
    assert {finding.level for finding in found} <= {"ok", "note"}
    assert {"devices", "/dev/infiniband", "port", "gid", "mtu", "memlock", "iommu", "dma-buf"} <= {
        one.check for one in found
    }


@pytest.mark.parametrize(
    ("path", "text", "check", "level", "fix"),
    [
        ("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n", "port", "warning", "ip link"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3", "IB/RoCE v1\n", "gid", "error", "RoCE v2"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000", "gid", "error", "address"),
        ("/sys/class/net/eth2/mtu", "1500\n", "mtu", "warning", "mtu 9000"),
        ("/proc/self/limits", "Max locked memory  65536  65536  bytes\n", "memlock", "error", "ulimit -l unlimited"),
        ("/sys/kernel/iommu_groups/7/type", "DMA-FQ\n", "iommu", "warning", "iommu=pt"),
        ("/proc/sys/kernel/osrelease", "5.4.0-generic\n", "dma-buf", "warning", "5.12"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_fix(with_nic, path, text, check, level, fix):
    with_nic.write(path, text)
    found = [finding for finding in device_checks(with_nic) if finding.check == check and finding.level == level]
    assert len(found) == 1
    assert fix in found[0].fix


def test_devices_that_are_not_let_into_a_container(with_nic):
    os.unlink(with_nic.path("/dev/infiniband/uverbs0"))
    assert levels(device_checks(with_nic))["/dev/infiniband"] == "error"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every file")
def test_devices_that_this_user_may_not_use(with_nic):
    os.chmod(with_nic.path("/dev/infiniband/uverbs0"), 0o400)
    assert levels(device_checks(with_nic))["/dev/infiniband"] == "error"


def test_infiniband_needs_no_gid_of_roce(with_nic):
    with_nic.write("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n")
    assert "gid" not in levels(device_checks(with_nic))


@pytest.mark.parametrize(
    ("scope", "level"), [("0", "ok"), ("1", "ok"), ("2", "warning"), ("3", "warning"), (None, "ok")]
)
def test_ptrace_scope(system, scope, level):
    if scope is not None:
        system.write("/proc/sys/kernel/yama/ptrace_scope", scope + "\n")
    finding = ptrace(system)
    assert finding.level == level
    assert bool(finding.fix) == (level == "warning")


@pytest.mark.parametrize(
    ("enabled", "shared", "level"),
    [
        ("always [madvise] never", "always within_size [advise] never deny force", "ok"),
        ("always madvise [never]", "[never]", "note"),
        ("[always] madvise never", "always within_size advise [never] deny force", "note"),
        (None, None, "note"),
    ],
)
def test_huge_pages(system, enabled, shared, level):
    for name, text in (("enabled", enabled), ("shmem_enabled", shared)):
        if text is not None:
            system.write(f"/sys/kernel/mm/transparent_hugepage/{name}", text)
    assert huge_pages(system).level == level


@pytest.mark.parametrize("line", ["quiet iommu=pt", "iommu.passthrough=1"])
def test_an_iommu_that_lets_through(system, line):
    system.write("/sys/kernel/iommu_groups/0/type", "DMA\n")
    assert iommu(system).level == "warning"
    system.write("/proc/cmdline", line)
    assert iommu(system).level == "ok"


def test_a_limit_is_shown_in_units(system):
    system.write("/proc/self/limits", "Max locked memory  8388608  8388608  bytes\n")
    assert "8 MiB" in memlock(system).text


def test_the_memory_of_a_container(system):
    system.write("/sys/fs/cgroup/memory.max", "2147483648\n")
    assert any("2 GiB" in finding.text for finding in host_checks(system))


def test_a_kernel_that_names_what_it_can(system):
    system.write("/proc/sys/kernel/osrelease", "4.18.0-553.el8\n")
    assert dma_buf(system).level == "warning"
    system.write("/sys/kernel/mm/memory_peers/amdkfd/version", "1.0\n")
    assert "amdkfd" in dma_buf(system).text
    system.write(
        "/proc/kallsyms", "0000000000000000 t ib_umem_dmabuf_get_pinned [ib_uverbs]\n0000 t ib_umem_dmabuf_get\t[x]\n"
    )
    assert dma_buf(system).level == "ok"


def test_how_far_gpus_are(with_nic):
    found = list(distances(with_nic, ["mlx5_0"]))
    assert [finding.level for finding in found] == ["ok", "ok", "warning"]
    assert "behind one switch (2 bridges" in found[0].text
    assert "at one root complex" in found[1].text
    assert "another NUMA node" in found[2].text
    assert "slot" in found[2].fix


def linked(system, pairs, kind=11):
    """Two processors and three GPUs, as the driver shows them."""
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    for node in range(5):
        system.write(f"{nodes}/{node}/gpu_id", f"{40000 + node if node > 1 else 0}\n")
        others = [two for one, two in pairs if one == node]
        for number, other in enumerate([0, *others]):
            text = f"type {kind if number else 2}\nversion_major 0\nnode_from {node}\nnode_to {other}\n"
            system.write(f"{nodes}/{node}/io_links/{number}/properties", text)


def test_gpus_that_are_all_joined(system):
    assert list(xgmi(system)) == []
    linked(system, [(one, two) for one in (2, 3, 4) for two in (2, 3, 4) if one != two])
    [finding] = xgmi(system)
    assert (finding.level, finding.text) == ("ok", "3 GPUs, each joined to each by xGMI")


@pytest.mark.parametrize(("pairs", "kind"), [([(2, 3), (3, 2)], 11), ([(2, 4), (3, 4), (2, 3)], 2)])
def test_gpus_that_speak_over_pcie(system, pairs, kind):
    linked(system, pairs, kind)
    [finding] = xgmi(system)
    assert finding.level == "note"
    assert "2 and 4, 3 and 4" in finding.text
    assert ("2 and 3" in finding.text) == (kind != 11)


def config(control):
    """The configuration of a bridge: a capability that is something else, then access control."""
    words = bytearray(0x1000)
    words[0x100:0x104] = struct.pack("<I", 0x0001 | 1 << 16 | 0x148 << 20)
    words[0x148:0x14C] = struct.pack("<I", 0x000D | 1 << 16)
    words[0x14E:0x150] = struct.pack("<H", control)
    return bytes(words)


@pytest.mark.parametrize(
    ("data", "level"),
    [(config(0x1D), "warning"), (config(0), "ok"), (config(0x1D)[:64], "note"), (b"\xff" * 0x1000, "ok")],
)
def test_bridges_that_redirect(system, data, level):
    system.write("/sys/bus/pci/devices/0000:00:01.0/class", "0x060400\n")
    system.write("/sys/bus/pci/devices/0000:00:01.0/config", data)
    [finding] = acs(system)
    assert finding.level == level


def test_the_command_as_json_and_its_status(with_nic, capsys):
    with_nic.write("/proc/sys/kernel/yama/ptrace_scope", "3\n")
    assert main(["doctor", "--json", "--root", with_nic.root]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {"check", "level", "text", "fix"} == set(document["findings"][0])
    assert document["pair"] is None


def test_the_command_for_people(system, capsys):
    assert main(["doctor", "--root", system.root]) == 0
    assert "note  devices: there are no RDMA devices here" in capsys.readouterr().out


def test_a_pair_that_does_not_answer(system, capsys):
    assert main(["doctor", "--root", system.root, "--pair", "127.0.0.1:1", "127.0.0.1:2"]) == 1
    assert "FAIL  pair: 127.0.0.1:1 and 127.0.0.1:2" in capsys.readouterr().out


def test_gpus_are_looked_for_as_the_user_wants_it(monkeypatch):
    from roost.cli.gpu_checks import gpu_checks

    monkeypatch.setenv("ROOST_GPU_PLATFORM", "none")
    [said] = gpu_checks()
    assert (said.level, said.text) == ("note", "ROOST_GPU_PLATFORM=none: no GPU is looked for")
    monkeypatch.setenv("ROOST_GPU_PLATFORM", "tpu")
    [said] = gpu_checks()
    assert said.level == "error"
    assert "none of rocm, cuda and none" in said.text
    monkeypatch.setenv("ROOST_GPU_PLATFORM", "rocm")
    assert [one.check for one in gpu_checks()][:2] == ["HIP", "RCCL"]

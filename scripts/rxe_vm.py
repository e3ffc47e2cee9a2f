#!/usr/bin/env python3
"""Runs a command beside two real RDMA devices where there is no RDMA hardware: soft-RoCE in a small virtual machine.

    scripts/rxe_vm.py [--timeout S] [--memory MIB] [--env NAME=VALUE]... -- COMMAND [ARGUMENT]...
    scripts/rxe_vm.py --prepare        only fill the cache

The machine is QEMU without KVM, booted from Debian's own kernel, whose modules have soft-RoCE. It sees this host's files at
their places (read-only, what it writes stays in its memory), the caller's environment and folder; COMMAND runs there as root.
Two devices, rxe0 on veth0 (10.77.0.1) and rxe1 on veth1 (10.77.0.2), are joined by a virtual cable: `ip link set veth0 down`
cuts it, `tc qdisc add dev veth0 root netem loss 1%` makes it bad. Kernel and modules are kept in ~/.cache/roost/rxe-vm.

Exits with COMMAND's status; 124 when the time is over, 125 when the machine could not be had or died, each with a sentence.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roost" / "rxe-vm"
# 6.1's soft-RoCE does its work in the caller's context; later kernels hand it to threads, which emulation makes 20 times slower.
KERNEL = "linux-image-amd64"
# What is started here or in the machine, and the package it comes with.
NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "rdma": "iproute2",
    "tc": "iproute2",
    "zstd": "zstd",
    "ibv_rc_pingpong": "ibverbs-utils",
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
}
MODULES = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "sch_netem",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
]

INIT = r"""#!/busybox sh
/busybox mkdir -p /bin /proc /sys /dev /lower /rw /root
/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module" || echo "rxe_vm: $module was not loaded"; done
until [ -c /dev/vport0p2 ]; do usleep 20000; done

# This host's files, and above them a layer in memory that takes what is written.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose host /lower
mount -t tmpfs -o size=90% rw /rw; mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work root /root
for folder in proc sys dev; do mount --bind /$folder /root/$folder; done
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts; mount -t tmpfs shm /dev/shm; mount -t tmpfs run /root/run
cp /job /root/run/job

# Both ends of the cable are in one network namespace, where the kernel would pass packets to a local address through "lo",
# which has no RDMA device. So packets to the other end are routed before it looks whether the address is its own, and
# only what comes in by the cable is looked up as local.
alias ip='chroot /root /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin ip'
hostname rxe-vm
ip link set lo up
ip link add veth0 mtu 9000 type veth peer name veth1 mtu 9000
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
# A cable that loses nothing by itself, as RoCE expects of one: an emulated processor does not keep up with four readers.
echo 50000 > /proc/sys/net/core/netdev_max_backlog
for end in 0 1; do
  own=10.77.0.$((1 + end)) other=10.77.0.$((2 - end)) settings=/proc/sys/net/ipv4/conf/veth$end
  echo 1 > $settings/accept_local; echo 0 > $settings/rp_filter
  echo 0 > /proc/sys/net/ipv6/conf/veth$end/accept_dad
  ip addr add $own/24 dev veth$end
  ip link set veth$end up
  ip rule add pref 10 iif veth$end lookup local
  ip rule add pref 20 from $own to $other lookup $((100 + end))
  ip route add $other dev veth$end src $own table $((100 + end))
done
ip rule add pref 30 lookup local
ip rule del pref 0
for end in 0 1; do
  chroot /root /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin rdma link add rxe$end type rxe netdev veth$end
done

# A port can be opened once only, so a pipe gathers what the command and its children print.
mkfifo /said
cat /said > /dev/vport0p1 & printer=$!
ulimit -l unlimited
chroot /root /bin/sh /run/job < /dev/null > /said 2>&1
status=$?
# Children that outlive the command may hold the pipe open.
( usleep 500000; kill $printer ) 2>/dev/null &
wait $printer
echo $status > /dev/vport0p2
poweroff -f
"""


def say(text: str) -> None:
    """What is being done, for who waits."""
    print(f"==> {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """Ends with one sentence."""
    print(f"rxe_vm: {text}", file=sys.stderr, flush=True)
    sys.exit(125)


def find(name: str) -> Path | None:
    """Where a program or a file is, if it is anywhere."""
    if name.startswith("/"):
        return Path(name) if Path(name).exists() else None
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return Path(found) if found else None


def install() -> None:
    """Installs what is not there, where that is possible."""
    missing = sorted({package for name, package in NEEDED.items() if find(name) is None})
    if not missing:
        return
    wanted = f"apt-get install --no-install-recommends {' '.join(missing)}"
    if not shutil.which("apt-get"):
        fail(f"{', '.join(missing)} are needed (Debian's names) and this system has no apt-get to install them with.")
    if os.geteuid() != 0:
        fail(f"{', '.join(missing)} are needed: run '{wanted}' as root, then this again.")
    say(f"installing {' '.join(missing)} (once)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for is_second in (False, True):
        if is_second:  # the package lists may be old, or not there
            subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        if subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL).returncode == 0:
            return
    fail(f"'{wanted}' did not succeed (see above): is this machine online?")


def unpacked(image: bytes) -> bytes:
    """The kernel inside a bzImage, which QEMU enters directly; unpacking it under emulation would take seconds."""
    sectors, offset, length = image[0x1F1], *struct.unpack_from("<II", image, 0x248)
    begin = (sectors + 1) * 512 + offset
    payload = image[begin : begin + length - 4]  # the last four bytes are the size
    if payload.startswith(b"\xfd7zXZ"):
        return lzma.decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-dc"], input=payload, check=True, stdout=subprocess.PIPE).stdout
    fail(f"the kernel is packed in a way that is not known here: {payload[:6].hex()}")


def modules(tree: Path) -> list[tuple[str, bytes]]:
    """The modules wanted and those they need, each after what it needs."""
    files = {path.name.split(".ko")[0].replace("-", "_"): path for path in tree.rglob("*.ko*")}
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in loaded or name not in files:  # what has no file is part of the kernel
            return
        content = files[name].read_bytes()
        if files[name].suffix == ".xz":
            content = lzma.decompress(content)
        needs = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in needs[1].decode().split(",") if needs else ():
            load(other.replace("-", "_"))
        loaded[name] = content

    for name in MODULES:
        load(name)
        if name not in loaded:
            say(f"the kernel has no module {name}: taken as built in")
    return list(loaded.items())


def archive(files: list[tuple[str, int, bytes]]) -> bytes:
    """An initramfs (cpio, "newc") of these names, modes and contents."""
    parts = bytearray()
    for number, (name, mode, content) in enumerate([*files, ("TRAILER!!!", 0, b"")], start=1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        for part in (header, content):
            parts += part
            parts += b"\0" * (-len(parts) % 4)
    return bytes(parts)


def kernel_package() -> str | None:
    """The package of the newest kernel of the wanted series, by apt's lists."""
    command = ["apt-cache", "depends", KERNEL]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    match = re.search(r"Depends: (linux-image-\S+)", said)
    return match[1] if match else None


def prepare() -> None:
    """Fills the cache: the kernel, and an initramfs of busybox and modules. Quick when it is full."""
    install()
    package, stamp = kernel_package(), CACHE / "made-from"
    if stamp.exists() and (package is None or stamp.read_text() == package + INIT):
        return
    if package is None:
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        package = kernel_package()
    if package is None:
        fail(f"apt knows no package {KERNEL}: this takes Debian's kernel, and Debian's package lists are not here.")
    say(f"fetching {package} for the machine (once)")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package]
        if subprocess.run(command, cwd=work, check=False).returncode != 0:
            fail(f"apt-get could not download {package} (see above): is this machine online?")
        (deb,) = Path(work).glob("*.deb")
        subprocess.run(["dpkg", "-x", deb, f"{work}/tree"], check=True)
        (image,) = Path(work, "tree/boot").glob("vmlinuz-*")
        files = [("busybox", 0o100755, Path(find("busybox") or "").read_bytes()), ("modules", 0o040755, b"")]
        for at, (name, content) in enumerate(modules(Path(work, "tree/lib/modules"))):
            files.append((f"modules/{at:02}-{name}.ko", 0o100644, content))
        files += [("init", 0o100755, INIT.encode())]
        Path(work, "kernel").write_bytes(unpacked(image.read_bytes()))
        Path(work, "initramfs").write_bytes(archive(files))
        for name in ("kernel", "initramfs"):
            Path(work, name).replace(CACHE / name)
    stamp.write_text(package + INIT)


def job(command: list[str], extra: list[str]) -> bytes:
    """What the machine's shell runs: the caller's environment and folder, then the command."""
    own = ("PWD", "OLDPWD", "SHLVL", "_")
    names = [name for name in os.environ if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name not in own]
    lines = [f"cd {shlex.quote(os.getcwd())}"]
    lines += [f"export {name}={shlex.quote(os.environ[name])}" for name in names]
    lines += [f"export {shlex.quote(setting)}" for setting in extra]
    lines += ["PATH=$PATH:/usr/sbin:/sbin", f"exec {shlex.join(command)}"]
    return "\n".join([*lines, ""]).encode()


def run(command: list[str], extra: list[str], memory: int, seconds: float) -> int:
    """Boots, runs, and says how the command ended."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as work:
        own = archive([("job", 0o100644, job(command, extra))])
        Path(work, "initramfs").write_bytes((CACHE / "initramfs").read_bytes() + own)
        status, console = Path(work, "status"), Path(work, "console")
        append = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=reliable no_timer_check audit=0"
        # Slow to emulate: five levels of page tables, and copies that "rep movsb" does byte by byte.
        qemu = f"""qemu-system-x86_64 -accel tcg -machine q35 -m {memory} -smp 2 -cpu max,la57=off,erms=off,fsrm=off
            -nodefaults -no-user-config -no-reboot -display none
            -kernel '{CACHE}/kernel' -initrd '{work}/initramfs' -append '{append}'
            -chardev 'file,id=console,path={console}' -serial chardev:console -device virtio-serial-pci
            -chardev file,id=said,path=/dev/fd/{writing} -device virtserialport,chardev=said,nr=1
            -chardev 'file,id=status,path={status}' -device virtserialport,chardev=status,nr=2
            -fsdev local,id=host,path=/,security_model=none,multidevs=remap,readonly=on
            -device virtio-9p-pci,fsdev=host,mount_tag=host"""
        machine = subprocess.Popen(shlex.split(qemu), stdin=subprocess.DEVNULL, pass_fds=[writing])
        os.close(writing)
        printer = threading.Thread(target=print_all, args=(reading,))
        printer.start()
        try:
            machine.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            print(f"rxe_vm: the machine was ended after {seconds:g} s", file=sys.stderr)
            return 124
        finally:
            machine.kill()
            machine.wait()
            printer.join()
        said = status.read_text().strip() if status.exists() else ""
        if not said:
            sys.stderr.write(console.read_text(errors="replace")[-4000:] if console.exists() else "")
            fail("the machine ended before the command did (its console is above).")
        return int(said)


def print_all(descriptor: int) -> None:
    """Passes on what the machine prints, until it ends."""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while some := pipe.read(1 << 16):
            sys.stdout.buffer.write(some)
            sys.stdout.buffer.flush()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", action="store_true", help="only fill the cache")
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="S", help="end the machine after so long, boot included (300)"
    )
    parser.add_argument(
        "--memory", type=int, default=2048, metavar="MIB", help="of the machine, files it writes included (2048)"
    )
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="set for the command")
    parser.add_argument("command", nargs="*", help="what to run")
    arguments = parser.parse_args()
    if not arguments.prepare and not arguments.command:
        parser.error("no command")
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        fail("this takes a Linux host with x86-64, whose programs the machine runs.")
    prepare()
    return 0 if arguments.prepare else run(arguments.command, arguments.env, arguments.memory, arguments.timeout)


if __name__ == "__main__":
    sys.exit(main())

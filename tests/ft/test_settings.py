import subprocess
import sys
from functools import partial
from importlib import metadata

import pytest
from toys import Toy

from roost.errors import Unavailable
from roost.ft import DiLoCo, EveryStep, FaultTolerantJob, GlobalBatch, LocalSGD
from roost.ft.places import per_host
from roost.ft.timeouts import Timeouts


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DiLoCo(10, fragments=("a", "b", "c")), "multiple of 3"),
        (lambda: DiLoCo(10, fragments="abc"), "list of names"),
        (lambda: DiLoCo(0), "every"),
        (lambda: DiLoCo(10, outer_momentum=1.0), "outer_momentum"),
        (lambda: LocalSGD(0), "every"),
        (lambda: Timeouts(0.1), "busy replica looks like one that hangs"),
        (lambda: FaultTolerantJob(Toy, replicas=2, min_replicas=3, steps=1), "min_replicas=3 of 2"),
        (lambda: FaultTolerantJob(Toy, replicas=2), "never ends"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, spare_hosts=1), "none is left to train on"),
        (lambda: per_host(3, 3, 2, 1), "none is left to train on"),
        (lambda: per_host(2, 0, 3, 1), "cannot be laid over 2 hosts"),
        (lambda: per_host(2, 0, 1, 3), "cannot be laid over 2 hosts"),
        (lambda: FaultTolerantJob(Toy(), replicas=2, steps=1), "subclass of Trainer"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, quorum="other"), "quorum"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, detect_within_s=0.01), "detect_within_s"),
        (lambda: FaultTolerantJob(Toy, replicas=3, data=GlobalBatch(range(9), 2)), "size=2 for 3 replicas"),
        (
            lambda: FaultTolerantJob(Toy, replicas=2, data=range(9), sync=EveryStep(backwards=None)),
            "give data=GlobalBatch",
        ),
        (lambda: EveryStep(backwards=0), "backwards"),
        # Of another kind altogether: each is named, and what to give.
        (lambda: FaultTolerantJob(Toy, replicas=2, data=9), "data=9: give items"),
        (lambda: GlobalBatch(9, 2), "data=9: give items"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, hosts=3), "hosts=3: give a mesh of hosts"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, sync="diloco"), "sync='diloco': give an EveryStep"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, sync=DiLoCo), "sync=.*: give an EveryStep"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, preload="torch"), "preload='torch': give a list"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, preload=None), "preload=None: give a list"),
        (lambda: FaultTolerantJob(Toy, replicas=2, steps=1, detect_within_s="10"), "detect_within_s must be a number"),
        (
            lambda: FaultTolerantJob(Toy, replicas=2, steps=1, detect_within_s=float("nan")),
            "detect_within_s=nan is not finite",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(make, text):
    with pytest.raises((ValueError, TypeError), match=text):
        make()


@pytest.mark.parametrize(
    ("hosts", "spare", "replicas", "procs", "each"),
    [(1, 0, 3, 2, 6), (2, 0, 4, 1, 2), (4, 0, 2, 6, 3), (3, 1, 2, 1, 1)],
)
def test_replicas_are_laid_over_hosts_whole_or_over_whole_hosts(hosts, spare, replicas, procs, each):
    assert per_host(hosts, spare, replicas, procs) == each


@pytest.mark.parametrize("found", [None, "0.1.1"])
def test_torchft_is_wanted_by_those_that_use_it(monkeypatch, found):
    def version(name):
        if name != "torchft":
            return "2.13.0"
        if found is None:
            raise metadata.PackageNotFoundError
        return found

    monkeypatch.setattr("roost.libraries.version", version)
    with pytest.raises(Unavailable, match=r"torchft==0\.2\.0"):
        FaultTolerantJob(partial(Toy, width=4), replicas=1, steps=1, sync=DiLoCo(2))
    with pytest.raises(Unavailable, match=r"torchft==0\.2\.0"):
        FaultTolerantJob(Toy, replicas=1, steps=1, sync=EveryStep(), quorum="torchft")
    FaultTolerantJob(Toy, replicas=1, steps=1, sync=EveryStep())


def test_every_rung_of_the_ladder_is_longer_than_what_it_waits_for():
    for detect_s in (0.5, 2.0, 30.0):
        ladder = Timeouts(detect_s)
        probe = ladder.probe
        assert 2 * probe.period_s + probe.grace_s <= detect_s
        assert ladder.look_s < 0.1 * detect_s
        assert ladder.group_s * 1.1 < detect_s
        assert ladder.collective_s(is_healing=False) * 1.1 < detect_s
        assert ladder.collective_s(is_healing=True) > ladder.heal_within_s
        assert f"{detect_s:g} s" in str(ladder)


def test_the_first_step_of_a_later_life_has_no_more_time_than_those_before_have_shown():
    ladder = Timeouts(2.0)
    assert ladder.first_step_after(None) == ladder.first_step_s == 60
    assert ladder.first_step_after(0.5) == 3.5
    assert ladder.first_step_after(1000.0) == 60


def test_torch_is_imported_neither_by_roost_nor_by_its_face_for_training():
    code = (
        "import sys, roost, roost.ft; from roost.ft import FaultTolerantJob, Trainer, DiLoCo; "
        "print([name for name in sys.modules if name.startswith('torch')], 'roost.ft.quorum' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.startswith("[]"), told
    code = "import sys, roost; print([name for name in sys.modules if name.startswith('roost.ft')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

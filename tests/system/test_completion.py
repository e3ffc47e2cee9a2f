"""`roost completion`: what real shells complete on the command line of `roost`."""

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roost.cli import main

ROOST = Path(sys.executable).with_name("roost")


def completed(shell, line, cwd):
    """What a shell gives for the last word of a line."""
    script = subprocess.run([ROOST, "completion", shell], capture_output=True, text=True, check=True).stdout
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    if shell == "bash":
        ask = (
            f"{script}\nCOMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}\n_roost\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = ["bash", "--norc", "--noprofile", "-c", ask]
    else:
        (cwd / ".complete.fish").write_text(script)
        command = ["fish", "--no-config", "-c", f"source .complete.fish; complete -C {shlex.quote(line)}"]
    said = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=True, env=os.environ | {"HOME": str(cwd)}
    )
    assert not said.stderr
    return {one.partition("\t")[0] for one in said.stdout.splitlines() if one}


SHELLS = [
    pytest.param(shell, marks=pytest.mark.skipif(shutil.which(shell) is None, reason=f"no {shell} here"))
    for shell in ("bash", "fish")
]
LINES = {
    "roost ": {"host", "key", "doctor", "job", "shell", "completion"},
    "roost jo": {"job"},
    "roost job ": {"apply", "status", "logs", "kill", "render"},
    "roost job r": {"render"},
    "roost job apply --": {"--wait", "--json", "--help"},
    "roost job logs --f": {"--follow"},
    "roost completion ": {"bash", "zsh", "fish"},
    "roost job apply ": {"train.py", "folder"},
    "roost shell tr": {"train.py"},
    "roost host --key-file k": {"key.txt"},
    "roost host --listen ": set(),
    # A file that is called as a command is.
    "roost key job ": {"folder", "train.py", "key.txt", "job"},
}
LOOSE_IN_FISH = ("roost job apply ", "roost key job ")


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_completed(shell, line, tmp_path):
    for name in ("train.py", "key.txt", "job"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    found = {one.rstrip("/") for one in completed(shell, line, tmp_path)}
    if shell == "fish" and line in LOOSE_IN_FISH:
        # It offers other files behind those that are meant, and does not know which word is a command.
        assert LINES[line] <= found
    else:
        assert found == LINES[line]


def typed(command, keys, until):
    """What a shell on a terminal shows once it was typed to; all keys are sent when the prompt is there."""
    import pty

    child, terminal = pty.fork()
    if not child:
        os.environ |= {"PATH": f"{ROOST.parent}:{os.environ['PATH']}", "PS1": "READY ", "TERM": "dumb"}
        os.execvp(command[0], command)
    shown, end = "", time.monotonic() + 30
    try:
        for expected, sent in [("READY ", keys), (until, "")]:
            while expected not in shown:
                assert time.monotonic() < end, shown
                if select.select([terminal], [], [], 0.1)[0]:
                    shown += os.read(terminal, 4096).decode(errors="replace")
            os.write(terminal, sent.encode())
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return shown


@pytest.mark.timeout(60)
def test_bash_on_a_terminal():
    typed(
        ["bash", "--norc", "--noprofile", "-i"], 'eval "$(roost completion bash)"\nroost job ren\t', "roost job render "
    )


@pytest.mark.timeout(60)
@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_on_a_terminal(tmp_path):
    begin = f'autoload -U compinit; compinit -u -d {tmp_path}/dump; eval "$(roost completion zsh)"; PS1="READY "\n'
    typed(["zsh", "-f", "-i"], f"{begin}roost job ren\t", "roost job render ")


def test_the_script_and_the_module_are_one_program():
    by_name = subprocess.run([ROOST, "--help"], capture_output=True, text=True, check=True).stdout
    by_module = subprocess.run(
        [sys.executable, "-m", "roost", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert by_name.startswith("usage: roost ")
    assert by_module.startswith("usage: python -m roost ")
    assert re.findall(r"^ {4}(\w+) ", by_name, re.MULTILINE) == re.findall(r"^ {4}(\w+) ", by_module, re.MULTILINE)


def test_a_shell_that_is_not_known_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err

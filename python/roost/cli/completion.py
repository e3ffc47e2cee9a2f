"""`roost completion`: what a shell completes on its command line, made from what the commands take."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["add_to"]

_EPILOG = """\
bash:  eval "$(roost completion bash)"                               in ~/.bashrc
zsh:   eval "$(roost completion zsh)"                                in ~/.zshrc, after compinit
fish:  roost completion fish > ~/.config/fish/completions/roost.fish
"""


def add_to(commands: Any) -> None:
    """Say what the command takes."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="have a shell complete these commands",
        description="Print the script by which a shell completes the command line of `roost`.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=sorted(_SHELLS), help="which shell")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    print(_SHELLS[options.shell](list(_commands(options.root))), end="")  # noqa: T201 - what a command says
    return 0


# What the parser takes ---------------------------------------------------------------------------------------------------
class _Option(NamedTuple):
    """An option of a command."""

    names: list[str]
    text: str
    values: str | None
    """`file`, `program`, words to choose from, or nothing known of them; None where it takes no value."""


class _Command(NamedTuple):
    """A command, or one below it."""

    path: str
    """The words that lead to it: "job apply"."""
    below: list[tuple[str, str]]
    """The commands below it, each with what it does."""
    options: list[_Option]
    values: list[str]
    """What its arguments are, as of an option's values."""


def _commands(parser: argparse.ArgumentParser, path: str = "") -> Iterator[_Command]:
    """A parser's command, and all below it."""
    below: dict[str, argparse.ArgumentParser] = {}
    texts: dict[str, str] = {}
    options, values = list[_Option](), list[str]()
    for action in parser._actions:
        text = _text(action)
        if isinstance(action, argparse._SubParsersAction):
            below |= action.choices
            texts |= {one.dest: _text(one) for one in action._choices_actions}
        elif action.option_strings:
            options.append(_Option(list(action.option_strings), text, None if action.nargs == 0 else _values(action)))
        else:
            values.append(_values(action))
    yield _Command(path, [(name, texts.get(name, "")) for name in below], options, values)
    for name, one in below.items():
        yield from _commands(one, f"{path} {name}".strip())


def _text(action: argparse.Action) -> str:
    return (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")


def _values(action: argparse.Action) -> str:
    if action.choices is not None:
        return " ".join(map(str, action.choices))
    metavar = str(action.metavar or "")
    if metavar.startswith("FILE.py"):
        return "program"
    return "file" if metavar.startswith("FILE") else ""


# How shells are told -----------------------------------------------------------------------------------------------------
_BASH = """\
# bash completes `roost` by this: eval "$(roost completion bash)"
_roost() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} at='' words='' options='' values='' number
    for ((number = 1; number < COMP_CWORD; number++)); do
        case "$at ${{COMP_WORDS[number]}}" in
            {paths}) at="${{at:+$at }}${{COMP_WORDS[number]}}" ;;
        esac
    done
    case "$at" in
{commands}
    esac
    case "$at ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{after}
        *) [[ $current == -* ]] && words=$options values='' ;;
    esac
    COMPREPLY=()
    case "$values" in
        file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
        program)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$current"; compgen -f -X '!*.py' -- "$current")
            ;;
        *) mapfile -t COMPREPLY < <(compgen -W "$words $values" -- "$current") ;;
    esac
}}
complete -F _roost roost
"""
_ZSH = """\
#compdef roost
# zsh completes `roost` by this: eval "$(roost completion zsh)", after compinit
_roost() {{
    local at='' values='' number
    local -a below options
    for ((number = 2; number < CURRENT; number++)); do
        case "$at ${{words[number]}}" in
            ({paths}) at="${{at:+$at }}${{words[number]}}" ;;
        esac
    done
    case "$at" in
{commands}
    esac
    case "$at ${{words[CURRENT - 1]}}" in
{after}
        (*) if [[ ${{words[CURRENT]}} == -* ]]; then _describe -o option options; return; fi ;;
    esac
    (( $#below )) && _describe command below
    case "$values" in
        ('') ;;
        (file) _files ;;
        (program) _files -g '*.py' ;;
        (*) compadd -- ${{(s: :)values}} ;;
    esac
}}
compdef _roost roost
"""


def _bash(commands: list[_Command]) -> str:
    lines = []
    for one in commands:
        words = " ".join(name for name, _ in one.below)
        options = " ".join(name for option in one.options for name in option.names)
        lines.append(
            f"        {shlex.quote(one.path)}) words={shlex.quote(words)} options={shlex.quote(options)} "
            f"values={shlex.quote(_first(one))} ;;"
        )
    after = [f"        {pattern}) words='' values={shlex.quote(values)} ;;" for pattern, values in _after(commands)]
    return _BASH.format(paths=_paths(commands), commands="\n".join(lines), after="\n".join(after))


def _zsh(commands: list[_Command]) -> str:
    lines = []
    for one in commands:
        below = " ".join(shlex.quote(f"{name}:{text}") for name, text in one.below)
        options = " ".join(shlex.quote(f"{name}:{one.text}") for one in one.options for name in one.names)
        lines.append(
            f"        ({shlex.quote(one.path)}) below=({below}) options=({options}) values={shlex.quote(_first(one))} ;;"
        )
    after = [f"        ({pattern}) below=() values={shlex.quote(values)} ;;" for pattern, values in _after(commands)]
    return _ZSH.format(paths=_paths(commands), commands="\n".join(lines), after="\n".join(after))


def _first(command: _Command) -> str:
    """What its arguments are: the first of them tells."""
    return command.values[0] if command.values else ""


def _paths(commands: list[_Command]) -> str:
    """Each command, behind the one that it is below, as a pattern."""
    parts = [one.path.rpartition(" ") for one in commands if one.path]
    return "|".join(shlex.quote(f"{above} {name}") for above, _, name in parts)


def _after(commands: list[_Command]) -> Iterator[tuple[str, str]]:
    """What stands behind an option that takes a value, as a pattern; and what that is."""
    for one in commands:
        for option in one.options:
            if option.values is not None:
                yield "|".join(shlex.quote(f"{one.path} {name}") for name in option.names), option.values


def _fish(commands: list[_Command]) -> str:
    lines = ["# fish completes `roost` by this: roost completion fish > ~/.config/fish/completions/roost.fish"]
    lines.append("complete -c roost -f")
    for one in commands:
        where = [f"__fish_seen_subcommand_from {word}" for word in one.path.split()]
        here = shlex.quote("; and ".join(where) or "true")
        if one.below:
            where.append(f"not __fish_seen_subcommand_from {' '.join(name for name, _ in one.below)}")
            at = shlex.quote("; and ".join(where))
            lines += [f"complete -c roost -n {at} -a {name} -d {_fish_text(text)}" for name, text in one.below]
            here = at
        lines += [f"complete -c roost -n {here}{_fish_option(option)}" for option in one.options]
        if _first(one):
            lines.append(f"complete -c roost -n {here}{_fish_values(_first(one))}")
    return "\n".join([*lines, ""])


def _fish_option(option: _Option) -> str:
    names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names)
    # What takes no file is not completed by one.
    taking = {None: "", "file": " -r", "program": " -r"}.get(option.values, " -x")
    values = taking + ("" if option.values is None else _fish_values(option.values))
    return f"{names} -d {_fish_text(option.text)}{values}"


def _fish_values(values: str) -> str:
    if values in ("file", "program"):
        return " -k -a '(__fish_complete_suffix .py)'" if values == "program" else " -F"
    return f" -a {shlex.quote(values)}" if values else ""


def _fish_text(text: str) -> str:
    # In fish a quote within quotes is escaped; there is no other way.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_SHELLS: dict[str, Callable[[list[_Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

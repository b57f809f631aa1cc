"""lockfast completion: scripts that complete commands and options in bash, zsh and fish.

The scripts are generated from the parser, so they never lag behind it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lockfast.cli import exit_codes
from lockfast.cli.arguments import Parser, make_parser
from lockfast.cli.streams import write_out


class Option(NamedTuple):
    name: str
    help: str
    takes_value: bool
    choices: Sequence[str]


def completion(arguments: argparse.Namespace) -> int:
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]
    for line in lines(make_parser()):
        write_out(f"{line}\n")
    return exit_codes.OK


def commands_of(parser: Parser) -> Mapping[str, Parser]:
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def options_of(parser: Parser) -> Iterator[Option]:
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--"):
                choices = tuple(map(str, action.choices or ()))
                about = (action.help or "").split(";")[0]
                yield Option(name, about, action.nargs != 0, choices)


def _descriptions(parser: Parser) -> Iterator[tuple[str, str]]:
    for name, command in commands_of(parser).items():
        yield name, (command.description or "").rstrip(".")


def _bash(parser: Parser) -> Iterator[str]:
    yield "_lockfast() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words i'
    yield "    COMPREPLY=()"
    yield "    for ((i = 2; i < COMP_CWORD; i++)); do"
    yield "        if [[ ${COMP_WORDS[1]} == run && ${COMP_WORDS[i]} == -- ]]; then"
    yield "            _command_offset $((i + 1)) 2>/dev/null"
    yield "            return"
    yield "        fi"
    yield "    done"
    yield "    if ((COMP_CWORD == 1)); then"
    yield f'        words="{" ".join((*commands_of(parser), "--help", "--version"))}"'
    yield "    else"
    yield '        case "${COMP_WORDS[1]} $before" in'
    for name, command in commands_of(parser).items():
        for option in options_of(command):
            if option.choices:
                yield f'            "{name} {option.name}") words="{" ".join(option.choices)}" ;;'
            elif option.takes_value:
                yield f'            "{name} {option.name}") return ;;  # files, by -o default'
    yield '            *) case "${COMP_WORDS[1]}" in'
    for name, command in commands_of(parser).items():
        words = [option.name for option in options_of(command)]
        words += ["bash", "zsh", "fish"] if name == "completion" else []
        yield f'                {name}) words="{" ".join(words)}" ;;'
    yield "            esac ;;"
    yield "        esac"
    yield "    fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _lockfast lockfast"


def _zsh(parser: Parser) -> Iterator[str]:
    yield "#compdef lockfast"
    yield "_lockfast() {"
    yield "    local -a commands options"
    yield "    if ((CURRENT == 2)); then"
    yield "        commands=("
    for name, about in _descriptions(parser):
        yield f"            {_quoted(f'{name}:{about}')}"
    yield "        )"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    local separator=${words[(I)--]}"
    yield "    if [[ $words[2] == run ]] && ((separator > 0 && separator < CURRENT)); then"
    yield "        shift $separator words"
    yield "        ((CURRENT -= separator))"
    yield "        _normal"
    yield "        return"
    yield "    fi"
    yield "    case $words[2] in"
    for name, command in commands_of(parser).items():
        yield f"        {name}) options=("
        for option in options_of(command):
            about = _zsh_text(option.help)
            value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
            suffix = value if option.takes_value else ""
            yield f"            {_quoted(f'{option.name}[{about}]{suffix}')}"
        if name == "completion":
            yield "            '*:shell:(bash zsh fish)'"
        yield "        ) ;;"
    yield "    esac"
    yield "    _arguments '1:command:' $options '*:argument:_files'"
    yield "}"
    yield "compdef _lockfast lockfast"


def _fish(parser: Parser) -> Iterator[str]:
    yield "complete -c lockfast -f"
    yield "complete -c lockfast -n __fish_use_subcommand -l help"
    yield "complete -c lockfast -n __fish_use_subcommand -l version"
    for name, about in _descriptions(parser):
        yield f"complete -c lockfast -n __fish_use_subcommand -a {name} -d {_quoted(about)}"
    for name, command in commands_of(parser).items():
        for option in options_of(command):
            line = f"complete -c lockfast -n '__fish_seen_subcommand_from {name}'"
            line += f" -l {option.name.removeprefix('--')} -d {_quoted(option.help)}"
            if option.choices:
                line += f" -x -a {_quoted(' '.join(option.choices))}"
            elif option.takes_value:
                line += " -r"
            yield line
    yield ("complete -c lockfast -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh_text(text: str) -> str:
    """Escape text for the brackets of a zsh option."""
    return text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")

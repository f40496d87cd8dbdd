"""`lorikeet completion`: a script with which a shell completes commands, flags and their values.

The script holds all words, so that a shell completes without starting Python. The script is made from the parser of the
command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.cli.verbs import add_command

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

SHELLS = ("bash", "zsh")

_SCRIPT = """\
# Completion of lorikeet for bash and zsh. For bash: source <(lorikeet completion bash)
# For zsh, after compinit: source <(lorikeet completion zsh)
_lorikeet() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} at="" words="" number
  for ((number = 1; number < COMP_CWORD; number++)); do
    case "$at ${{COMP_WORDS[number]}}" in
      {paths}) at="$at ${{COMP_WORDS[number]}}" ;;
    esac
  done
  case "$at $previous" in
{values}
  esac
  if [ -z "$words" ]; then
    case "$at" in
{words}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _lorikeet lorikeet
"""
_FOR_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


class Level(msgspec.Struct, frozen=True):
    """The words that may follow a command's path."""

    words: list[str]
    """The names of the commands below the path, and the flags."""
    values: dict[str, list[str]]
    """The values of each flag that takes one; [] where they are no fixed words: a file, a name, a number."""
    positional: list[str]
    """The fixed words that the command's positional arguments may be."""


def register(verbs: Verbs) -> None:
    """Add `lorikeet completion` to the command line."""
    completion = add_command(
        verbs,
        "completion",
        _print,
        "Print a script with which a shell completes commands, flags and their values. For bash, put "
        "`source <(lorikeet completion bash)` into ~/.bashrc; for zsh, `source <(lorikeet completion zsh)` into "
        "~/.zshrc, after compinit.",
        has_json=False,
    )
    completion.add_argument("shell", choices=SHELLS, help="shell that the script is for")


def _print(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.command import build_parser

    print((_FOR_ZSH if arguments.shell == "zsh" else "") + script(build_parser()), end="")
    return 0


def script(parser: argparse.ArgumentParser) -> str:
    """Return the script for the commands of a parser."""
    levels = dict(_levels(parser, ""))
    values, words = [], []
    for path, level in levels.items():
        for flag, choices in level.values.items():
            shown = f'words="{" ".join(choices)}"' if choices else "return"
            values.append(f'    "{path} {flag}") {shown} ;;')
        words.append(f'      "{path}") words="{" ".join([*level.words, *level.positional])}" ;;')
    paths = " | ".join(f'"{path}"' for path in levels if path)
    return _SCRIPT.format(paths=paths, values="\n".join(values), words="\n".join(words))


def _levels(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, Level]]:
    """Yield each path of commands, such as " tenant create", with the words that may follow."""
    level = Level([], {}, [])
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            level.words.extend(below)
        elif action.option_strings:
            level.words.extend(action.option_strings)
            if action.nargs != 0:
                level.values.update(dict.fromkeys(action.option_strings, _choice_texts(action)))
        else:
            level.positional.extend(_choice_texts(action))
    yield path, level
    for name, child in below.items():
        yield from _levels(child, f"{path} {name}")


def _choice_texts(action: argparse.Action) -> list[str]:
    return [] if action.choices is None or action.type is Path else [str(choice) for choice in action.choices]

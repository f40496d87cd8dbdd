"""Texts of the model, by the name that a prompt has in it as `[script:NAME]`: one for each of the assistant's turns.

Tools are called as `gateway.text.tools.formats.HERMES` writes calls.
"""

from __future__ import annotations

import json
import re
from typing import Any

THOUGHT = "The user wants two facts, so I call two tools, one after the other."
OTHERWISE = "Fine."
"""The model's text after a prompt that names no script, or whose script is over."""

_NAME = re.compile(r"\[script:([a-z_]+)\]")


def call(name: str, **arguments: Any) -> str:
    """Return a call of a tool as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def thought(text: str) -> str:
    """Return thinking in the form that the model writes before an answer."""
    return f"<think>\n{text}\n</think>\n\n"


SCRIPTS: dict[str, list[str]] = {
    "two_tools": [
        call("get_weather", city="Paris"),
        call("get_time", city="Paris"),
        "In Paris it is sunny, and it is noon.",
    ],
    "two_tools_at_once": [
        call("get_weather", city="Paris") + "\n" + call("get_time", city="Paris"),
        "In Paris it is sunny, and it is noon.",
    ],
    "thoughtful": [
        thought(THOUGHT) + call("get_weather", city="Paris"),
        thought("Now the time.") + call("get_time", city="Paris"),
        thought("I have both.") + "In Paris it is sunny, and it is noon.",
    ],
    "thought": [thought("Two and two are four.") + "The answer is 4."],
    "hand_off": [
        call("transfer_to_clerk"),
        call("get_time", city="Paris"),
        "The clerk says that it is noon in Paris.",
    ],
    "typed": ['{"city": "Paris", "temperature": 21}'],
    "patch": [call("apply_patch", input="*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch"), "Patched."],
    "codex": [
        call("exec_command", cmd="cat first.txt"),
        call("exec_command", cmd="cat second.txt"),
        "The files say: alpha and beta.",
    ],
    "codex_thoughtful": [
        thought("I read the first file.") + call("exec_command", cmd="cat first.txt"),
        thought("And the second.") + call("exec_command", cmd="cat second.txt"),
        thought("Both are read.") + "The files say: alpha and beta.",
    ],
    "claude": [
        call("Bash", command="cat first.txt", description="Read the first file"),
        call("Bash", command="cat second.txt", description="Read the second file"),
        "The files say: alpha and beta.",
    ],
    "claude_thoughtful": [
        thought("I read the first file.") + call("Bash", command="cat first.txt", description="Read the first file"),
        thought("And the second.") + call("Bash", command="cat second.txt", description="Read the second file"),
        thought("Both are read.") + "The files say: alpha and beta.",
    ],
}


def scripted_text_after(prompt: str, turn_mark: str) -> str:
    """Return the scripted text of the model after a prompt.

    turn_mark: the beginning of each of the assistant's turns, the last of which is still to come.
    """
    named = list(_NAME.finditer(prompt))
    if not named:
        return OTHERWISE
    last = named[-1]
    steps = SCRIPTS.get(last[1], [])
    number = prompt.count(turn_mark, last.end()) - 1
    return steps[number] if 0 <= number < len(steps) else OTHERWISE

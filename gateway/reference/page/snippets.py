"""An operation as a line of curl and, where OpenAI's client has a method for it, as Python. Pure.

`BASE_URL` stands for the server's; the caller puts the reader's own there.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

BASE_URL = "https://lorikeet.invalid"
"""The placeholder for the server's URL; no name under `.invalid` leads anywhere (RFC 2606, section 2)."""

KEY = "$OPENAI_API_KEY"
OPERATOR_KEY = "$LORIKEET_ADMIN_KEY"

LINE_LENGTH = 60
"""The number of characters that fit on a line of code in the page."""


def curl(method: str, path: str, operation: dict[str, Any], body: dict[str, Any] | None, *, is_admin: bool) -> str:
    """Return a curl command. Parameters of the path stand as variables of the shell.

    body: the example's body; None without one. is_admin: True: the key is an operator's.
    """
    url = BASE_URL + re.sub(r"\{(\w+)\}", lambda match: f"${match[1].upper()}", path)
    query = [each["name"] for each in operation["parameters"] if each["in"] == "query" and each.get("required")]
    if query:
        url += "?" + "&".join(f"{name}=${name.upper()}" for name in query)
    lines = [f'curl "{url}"' if "$" in url else f"curl {url}"]
    if method != "GET" and not (method == "POST" and body is not None):
        lines[0] += f" -X {method}"
    if operation["security"]:
        lines.append(f'-H "Authorization: Bearer {OPERATOR_KEY if is_admin else KEY}"')
    lines += [
        f'-H "{each["name"]}: ${_variable(each["name"])}"'
        for each in operation["parameters"]
        if each["in"] == "header" and each["required"]
    ]
    if body is not None:
        shown = json.dumps(body, ensure_ascii=False, indent=2 if body else None)
        lines += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(shown)}"]
    elif "requestBody" in operation and operation["requestBody"]["required"]:
        lines.append(_upload(operation["requestBody"]["content"]))
    return " \\\n  ".join(lines)


def python(client_method: str, body: dict[str, Any] | None) -> str:
    """Return a program that prints the result of a method of OpenAI's client. Its key comes from OPENAI_API_KEY.

    client_method: the method, such as `chat.completions.create`. body: the arguments of the call; None
    without any.
    """
    call = f"client.{client_method}({_arguments(body or {})})"
    return f'from openai import OpenAI\n\nclient = OpenAI(base_url="{BASE_URL}/v1")\nprint({call})\n'


def _arguments(body: dict[str, Any]) -> str:
    return "".join(f"\n    {name}={_literal(value, 4)}," for name, value in body.items()) + ("\n" if body else "")


def _literal(value: Any, indent: int) -> str:
    """Return a value as a formatter of Python would lay it out; indent is that of the line on which it begins."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if not isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False)
    opening, closing = "[]" if isinstance(value, list) else "{}"
    if isinstance(value, list):
        parts = [_literal(each, indent + 4) for each in value]
    else:
        parts = [f"{json.dumps(name)}: {_literal(each, indent + 4)}" for name, each in value.items()]
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) <= LINE_LENGTH - indent and "\n" not in line:
        return line
    inner = "".join(f"\n{' ' * (indent + 4)}{part}," for part in parts)
    return f"{opening}{inner}\n{' ' * indent}{closing}"


def _upload(content: dict[str, Any]) -> str:
    if "multipart/form-data" in content:
        return "-F name=$NAME -F archive=@adapter.tar.gz"
    return "--data-binary @part"


def _variable(header: str) -> str:
    return header.upper().replace("-", "_")

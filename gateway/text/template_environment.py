"""The sandbox in which chat templates run, with the filters, tags and names that templates of models expect to find.

Templates are written for transformers. The same things are here without that library, whose import takes longer than
the rest of a gateway's start.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _GenerationTag(Extension):
    """The tag `{% generation %}` around the assistant's text, which only training uses: a scope, and no more."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Dict:
    """The function `dict` in templates, which makes dictionaries without giving access to the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """The function `namespace` in templates, whose attributes never are Python internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # an attribute may be called self
        for name in dict(*args[1:], **kwargs):
            _require_public(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attributes that begin with an underscore, such as {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON in the form that models were trained on, without jinja2's escapes for HTML.

    The other arguments are those of `json.dumps`.
    """
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a faster check for the attributes of loops.

    Templates ask for `loop.first` and the like with each message.
    """

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Tell whether a template may read an attribute of an object. The answer is always that of jinja's sandbox."""
        if type(obj) is LoopContext:
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)


def _environment() -> ImmutableSandboxedEnvironment:
    made = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = _tojson
    made.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    return made


ENVIRONMENT = _environment()
GLOBALS = frozenset(ENVIRONMENT.globals)
"""The global names of every template."""

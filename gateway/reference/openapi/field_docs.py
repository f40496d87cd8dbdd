"""Docstrings of structs' fields, which the document shows as descriptions.

Python forgets the text below a field, so it is read from the module's source. Knows nothing about JSON schemas.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from itertools import pairwise

import msgspec


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring of each field of a struct that has one, by the name under which the field travels.

    A docstring of the class itself wins over one of a class that it inherits from.
    """
    by_name: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        by_name |= _docs_of_module(each.__module__).get(each.__qualname__, {})
    encoded = {each.name: each.encode_name for each in msgspec.structs.fields(struct)}
    return {encoded[name]: text for name, text in by_name.items() if name in encoded}


@functools.cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of each top-level class of a module; none where there is no source."""
    try:
        source = inspect.getsource(sys.modules[name])
    except (OSError, TypeError):
        return {}
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {each.name: _docs_of_class(each) for each in classes}


def _docs_of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in pairwise(node.body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[field.target.id] = " ".join(below.value.value.split())
    return found

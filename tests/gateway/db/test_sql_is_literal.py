"""Every statement that reaches PostgreSQL is text that stands in the source: nothing is ever formatted into it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gateway

ROOM = Path(gateway.__file__).parent
QUERIES = frozenset({"execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchmany", "cursor", "prepare"})
EXCEPTIONS = {
    ("db/migrate.py", "read_tables()"),
    ("db/migrate.py", "step.sql"),
    ("db/migrate.py", "functions.sql"),
    ("db/conversion.py", "conversion.sql"),
}
"""The calls that execute the schema's own files, whose text is not a literal."""


def formatted(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every query argument that is neither a literal nor the name of one."""
    tree = ast.parse(source)
    literals = {
        target.id
        for statement in tree.body
        if isinstance(statement, ast.Assign) and _is_text(statement.value)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple):
            names = [item.id for item in node.iter.elts if isinstance(item, ast.Name)]
            if len(names) == len(node.iter.elts) and literals.issuperset(names):
                literals.add(node.target.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in QUERIES:
            if node.func.attr == "prepare" and not ast.unparse(node.func.value).endswith(("conn", "connection")):
                continue  # the pipeline prepares requests
            if node.func.attr == "fetch" and ast.unparse(node.func.value) in ("cursor", "self._fetcher"):
                continue  # a number of rows of a statement that was given before; adapters from elsewhere
            first = node.args[0] if node.args else None
            if first is None or _is_text(first) or (isinstance(first, ast.Name) and first.id in literals):
                continue
            yield node.lineno, ast.unparse(first)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_statement_is_formatted() -> None:
    found = [
        f"{path.relative_to(ROOM)}:{line}: {expression}"
        for path in sorted(ROOM.rglob("*.py"))
        for line, expression in formatted(path.read_text())
        if (str(path.relative_to(ROOM)), expression) not in EXCEPTIONS
    ]
    assert found == []


@pytest.mark.parametrize(
    "argument",
    [
        "f'SELECT {x}'",
        "'SELECT ' + x",
        "'SELECT %s' % x",
        "'SELECT {}'.format(x)",
        "_SQL.format(x)",
        "_SQL + x",
        "build(x)",
        "x",
        "_ASSEMBLED",
    ],
)
@pytest.mark.parametrize("query", ["execute", "fetchrow", "prepare", "cursor"])
def test_the_check_finds_what_it_looks_for(argument: str, query: str) -> None:
    source = (
        f"_SQL = 'SELECT 1'\n_ASSEMBLED = _SQL + 'x'\nasync def go(conn, x):\n    await conn.{query}({argument}, 1)\n"
    )
    assert [line for line, _ in formatted(source)] == [4]


def test_the_check_lets_literals_through() -> None:
    source = "_A = 'SELECT 1'\n_B = 'SELECT 2'\nasync def go(conn):\n    await conn.fetch(_A)\n    for s in (_A, _B):\n"
    assert list(formatted(source + "        await conn.execute(s)\n    await conn.fetchval('SELECT 3', 1)\n")) == []

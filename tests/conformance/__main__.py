"""python -m tests.conformance: install every outside client and suite, run them against one server, write the page."""

from __future__ import annotations

import argparse
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec

from tests.conformance.environments import SuiteUnavailable
from tests.conformance.page import page
from tests.conformance.results import Outcome, Result, load_result, store_result, to_run_again
from tests.conformance.run import installed, run_command
from tests.conformance.scripted.site import playing
from tests.conformance.site import ALL_UNITS, FEW_UNITS, Site, serving
from tests.conformance.suites import HERE, OPENFEATURE, REPOSITORY, SUITES, Suite
from tests.conformance.tree import tree_of
from tests.gateway.openai.field_matrix import FIELDS
from tests.gateway.openai.field_matrix.table import as_markdown

BUILD = REPOSITORY / "build" / "conformance"
PAGE, FIELDS_PAGE = HERE / "README.md", HERE / "fields.md"


def main() -> int:
    """Return 0 if every case that ran passed; 1 if a case failed or a suite could not run."""
    arguments = _arguments()
    chosen = [suite for suite in SUITES if not arguments.only or suite.name in arguments.only]
    tree = tree_of(REPOSITORY)
    num_units = (ALL_UNITS if arguments.full else FEW_UNITS) if OPENFEATURE in chosen else 0
    results = _run(chosen, BUILD, tree, num_units)
    _write_pages(tree, BUILD / "results")
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
    return 0 if all(result.is_good for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    names = [suite.name for suite in SUITES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--full", action="store_true", help=f"of {OPENFEATURE.name}: {ALL_UNITS:,} units")
    parser.add_argument("--json", action="store_true", help="print what came of each case")
    return parser.parse_args()


def _write_pages(tree: str, folder: Path) -> None:
    """Write the pages of results, unless some results are of other sources."""
    if again := to_run_again([suite.name for suite in SUITES], tree, folder):
        print(f"the page stays as it is: {', '.join(again)} did not run on the tree {tree}", file=sys.stderr)
        print(f"run again: python -m tests.conformance --only {' '.join(again)}", file=sys.stderr)
        return
    results = {suite.name: result for suite in SUITES if (result := load_result(suite.name, folder))}
    PAGE.write_text(page(SUITES, results, FIELDS, tree))
    FIELDS_PAGE.write_text(as_markdown(FIELDS))


def _run(suites: list[Suite], build: Path, tree: str, num_units: int) -> list[Result]:
    """Install everything, start a server, and run the suites; return the results.

    tree: the hash of the sources as they are now.
    num_units: the units of the demo's experiment, which is not started with 0.
    """
    commands: list[tuple[Suite, list[str] | SuiteUnavailable]] = []
    for suite in suites:
        print(f"installing for {suite.title} ...", file=sys.stderr, flush=True)
        try:
            commands.append((suite, installed(suite, build)))
        except SuiteUnavailable as unavailable:
            commands.append((suite, unavailable))
    results = []
    for plays, site_of in ((False, partial(serving, num_units=num_units)), (True, playing)):
        mine = [(suite, command) for suite, command in commands if suite.plays == plays]
        if not mine:
            continue
        folder = build / ("playing" if plays else "server")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with site_of(folder) as site:
            results += [_run_suite(suite, command, site, build / "results", tree) for suite, command in mine]
    return results


def _run_suite(suite: Suite, command: list[str] | SuiteUnavailable, site: Site, folder: Path, tree: str) -> Result:
    if isinstance(command, SuiteUnavailable):
        result = Result(suite.name, suite.versions(), not_run=str(command))
    else:
        result = run_command(suite, command, site, folder)
    result = _of_tree(result, tree)
    store_result(result, folder)
    _say(suite, result)
    return result


def _of_tree(result: Result, tree: str) -> Result:
    """Return a result marked with the hash of its sources, or as not run if the sources changed while it ran."""
    if tree_of(REPOSITORY) != tree:
        return Result(result.suite, result.versions, not_run="the sources changed while it ran")
    return msgspec.structs.replace(result, tree=tree)


def _say(suite: Suite, result: Result) -> None:
    print(f"{suite.title}:", file=sys.stderr)
    if result.not_run:
        print(f"  not run: {result.not_run}", file=sys.stderr)
        return
    counts = ", ".join(f"{result.count(outcome)} {outcome}" for outcome in get_args(Outcome))
    print(f"  {counts}", file=sys.stderr, flush=True)
    for case in result.cases:
        if case.outcome == "failed":
            print(f"  failed: {case.name}: {case.reason}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

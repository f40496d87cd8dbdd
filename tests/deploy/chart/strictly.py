"""`python strictly.py VERSION...`: what is wrong with a manifest by Kubernetes' own schemas, one line each.

The manifest is on standard input.
Runs in the environment of `make long-chart`, and imports nothing of ours. Custom resources are left out, and named.
"""

from __future__ import annotations

import sys

import kubernetes_validate
import yaml


def main() -> None:
    for each in yaml.safe_load_all(sys.stdin):
        if not each:
            continue
        name = f"{each['kind']} {each['metadata']['name']}"
        for version in sys.argv[1:]:
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.SchemaNotFoundError:
                print(f"custom: {each['kind']}")
                break
            except kubernetes_validate.ValidationError as error:
                print(f"{name} in {version}: {'.'.join(map(str, error.path))}: {error.message}".replace("\n", " "))


main()

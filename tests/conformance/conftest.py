"""Scripts of the suites run in their own environments, by `make conformance`."""

collect_ignore = ["clients"]

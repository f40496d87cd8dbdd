"""The gateway: HTTP, tenants, keys, limits, metering, billing and routing. It knows nothing of tensors.

Every room is a folder on one floor and imports from lower floors alone; the layers contract in pyproject.toml lists
the floors, and ARCHITECTURE.md shows them. A subject (organization, adapters, limits, billing, traffic, content) has
the same folder name on every floor where it appears: pure decisions in `domain`, queries in `db`, routes in `admin`,
commands in `cli`.
"""

"""Whole installations as `deploy/` describes them: balancers, upgrades under load, packages, units, containers."""

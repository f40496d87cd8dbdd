"""Scaffolding of tests, each piece written once. Knows nothing about any test's promises.

Child processes, loops that wait, a fake engine, gateways in this process and in processes of their own, PostgreSQL with
a database for each test, and tenants with their keys.
"""

"""Experiments that run: the secrets of their units, gateways' notes about requests, and the counting of both.

`keys` gives the secret of a project, `notes` writes each second the notes that requests leave in memory. Assignment
itself is in `gateway.routing.experiments`, and pure in `gateway.domain.experiments`.
"""

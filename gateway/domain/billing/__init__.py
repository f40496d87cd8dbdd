"""Billing's arithmetic, without I/O: price book, cost of usage, credits, closed periods, invoices and their pages."""

"""Decisions about where a request goes, without I/O.

    model_string, bases            the parts of a model string; the base models that a gateway serves, and to whom
    policy                         routes that a project declares: splits, fallbacks, cascades
    breaker, retry_budget,
    hedge_budget                   bounds on requests to servers that fail, and on second tries
    foreign_usage                  the billed usage of a reply from a server of another maker

Knows neither backends nor tables.
"""

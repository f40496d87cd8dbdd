"""Requests by the name of a route: the plan for each, and its steps until one has begun to answer.

routed   runs requests by plans
steps    the place in a plan, and which error leads where
trial    one trial of a request at one target
facts    what a request says of itself, for its plan
check    the check of a cascade on an answer
budgets  further rounds and second tries that a route may make
"""

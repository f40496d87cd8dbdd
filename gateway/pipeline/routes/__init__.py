"""Requests by the name of a route: the plan for each, and its steps until one has begun to answer.

routed  runs requests by plans
steps   the place in a plan, and which error leads where
facts   what a request says of itself, for its plan
"""

"""Backends answer prompts, behind one interface (`base`): token ids go in, text and usage come out.

`engine` speaks to our own engine. `pool` chooses among the backends of one base model, `generation` has what a backend
is asked for and what it yields, `usage` has where a backend reports usage.
"""

"""Backends answer prompts, behind one interface (`base`): token ids go in, text and usage come out.

`engine` speaks to our own engine, `foreign` to servers of other makers, and `text` makes text of token ids. `pool`
chooses among the backends of one base model, `generation` has what a backend is asked for and what it yields, `usage`
has where a backend reports usage.
"""

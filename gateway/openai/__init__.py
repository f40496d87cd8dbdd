"""The OpenAI-compatible API: wire structs, handlers, event streams, errors. Only this room knows OpenAI's names."""

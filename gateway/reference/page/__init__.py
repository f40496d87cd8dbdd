"""The reference page: the OpenAPI document as people read it. Offline, without scripts, the same for everybody."""

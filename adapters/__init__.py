"""What an adapter is: identity, the PEFT file format, inspection of strangers' files, and a content-addressed store.
No torch, HTTP or SQL."""

"""What an adapter is: identity, the PEFT file format, and a content-addressed store. No torch, HTTP or SQL."""

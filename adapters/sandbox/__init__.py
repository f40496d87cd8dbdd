"""A process for work on strangers' files, and the kernel's ways to confine it. Knows nothing of adapters."""

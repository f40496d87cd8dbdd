"""Adapters: their identity, PEFT's file format, the inspection of strangers' files, and a store by content.

This package knows nothing of torch, HTTP and SQL.

    inspection, inspector, sandbox, archive   strangers' files, judged in a confined process
    peft_format, peft_config                  PEFT's files; safetensors_header, shards, safe_file: reading them
    patterns                                  the modules that PEFT's keys of ranks and alphas mean
    digest, ref                               identity: SHA-256 over an adapter's numbers, and the name at engines
    store, remote_store, cache, stores        content by digest, in a folder or in a bucket with a bounded cache
    merge                                     an adapter and its base as one plain model

The digest covers modules, ranks, scalings and weights. Engines know content by digest and owner (`ref`), so equal
bytes of two tenants are two things on a device, and one in the store. A process under rlimits and a system-call
filter, which can open neither file nor socket, unpacks strangers' files into two files opened beforehand, judges
these copies, and returns at most 1 MiB. Without such a filter nothing is inspected.
"""

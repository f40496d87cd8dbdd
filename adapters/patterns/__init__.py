"""PEFT's patterns of ranks and alphas by module: `lookup` finds a module's value, `expression` matches one key."""

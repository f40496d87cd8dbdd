"""The gateway: HTTP, tenants, keys, metering and routing. It knows nothing of tensors."""

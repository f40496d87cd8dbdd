"""The operations of a decoder step, each beside its fp32 reference. They know tensors and nothing of requests."""

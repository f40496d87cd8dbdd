"""SQL of limits: the limits, gateways' leases of them, and alerts and webhooks that report what needs attention."""

"""Put one gateway process together from its settings: services, the HTTP application, start and stop."""

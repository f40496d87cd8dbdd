"""The OpenAPI document of every route, and the page made of it."""

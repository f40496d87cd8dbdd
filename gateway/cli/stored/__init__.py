"""Commands about stored responses and conversations, with a key of a project."""

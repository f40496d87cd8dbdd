"""From content that comes from outside to a version of an adapter that answers, and away again."""

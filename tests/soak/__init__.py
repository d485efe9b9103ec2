"""Many streams at once."""

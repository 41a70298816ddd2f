"""Products on the meta device."""

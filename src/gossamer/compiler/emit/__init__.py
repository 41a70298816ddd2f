"""From loop nests to C."""

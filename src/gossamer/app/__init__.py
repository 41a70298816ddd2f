"""The command gossamer."""

"""What the command gossamer runs."""

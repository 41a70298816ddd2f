"""Products of formats that store a dense tensor: torch's own."""

"""pack_: every sparse layer into the format that is fastest."""

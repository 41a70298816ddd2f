"""pack_: convert every sparse layer to its fastest format."""

"""Which pairs of a product are multiplied first: chosen by estimates of entries, as a database orders its joins."""

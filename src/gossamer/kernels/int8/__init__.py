"""Products of int8 weights, dense or sparse, and activations in eight bits, on a CPU."""

"""Linear layers with weights of 8 or 4 bits for a GPU: dense, 2:4 and V:N:M, one function for all of them."""

"""Kernels, one folder a family: the torch operators with their schemas, fakes and gradients, and their launches."""

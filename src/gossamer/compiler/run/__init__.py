"""Kernels are built, cached, planned for operands, and run."""

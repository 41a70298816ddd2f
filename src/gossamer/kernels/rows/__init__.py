"""Packed rows, what the CPU kernels read."""

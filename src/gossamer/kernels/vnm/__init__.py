"""Packed V:N:M, what sparse tensor cores read."""

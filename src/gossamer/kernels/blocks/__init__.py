"""Compressed rows of blocks."""

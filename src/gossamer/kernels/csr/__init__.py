"""Compressed rows: sparse x dense, and a dense product sampled at stored positions."""

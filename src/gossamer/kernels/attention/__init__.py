"""Attention in one kernel: on a GPU where a sparse mask has entries; on a CPU dense, for deployed models."""

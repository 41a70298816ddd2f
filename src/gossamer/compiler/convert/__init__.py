"""Entries from one stack of levels to another."""

"""Packed bitmaps, any pattern on dense tensor cores."""

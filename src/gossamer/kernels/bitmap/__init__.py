"""Packed bitmaps, any pattern on sparse tensor cores."""

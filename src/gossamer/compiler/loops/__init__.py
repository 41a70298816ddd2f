"""Loop nests: chosen by cost, lowered from programs, and run by an interpreter."""

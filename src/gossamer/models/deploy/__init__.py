"""Models on their way out of Python: export, fusion, a compiled file that is checked."""

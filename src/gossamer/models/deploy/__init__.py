"""Deploying models: export, fusion in the graph, and one compiled file that is checked."""

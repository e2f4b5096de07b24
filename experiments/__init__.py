"""Configurations and scripts of experiments, one folder a paper; README.md is the map. pyrofl imports nothing here."""

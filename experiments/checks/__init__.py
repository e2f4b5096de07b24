"""Checks of methods against exact answers, at more length than a test may take."""

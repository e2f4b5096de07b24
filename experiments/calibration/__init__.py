"""Can the models' uncertainty be believed: temperatures, shared rows, foreign rows."""

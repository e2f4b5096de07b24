"""Can uncertainty be believed: simulation-based calibration, NUTS on the pooled data, temperatures, foreign rows."""

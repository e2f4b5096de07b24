"""Calibration of federated posteriors: simulation-based calibration, and NUTS on the pooled data."""

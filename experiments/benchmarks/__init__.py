"""Speed and size, measured: see README.md in this folder."""

"""Does training converge as a theorem says: measured gaps of strongly convex problems beside the bounds."""

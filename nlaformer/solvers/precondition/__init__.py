"""Preconditioners by name, on NumPy and SciPy alone: r -> M r, where M approximates the *inverse* of A."""

"""Measurements as ratios within one run; not part of the package and not tests."""

"""Benchmarks that compare the gateway with other programs in the same run. Neither part of the package nor of the tests."""

"""Mutation testing of the packages that decide and remember: `make mutants`. `operators` changes code, `session` runs the tests."""

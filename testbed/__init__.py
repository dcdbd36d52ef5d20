"""Test equipment, not part of the product: the real parts that tests, demo and benchmarks run against."""

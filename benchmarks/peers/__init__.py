"""The systems that the speed benchmarks compare, each in its own process."""

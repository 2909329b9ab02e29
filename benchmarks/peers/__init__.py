"""The systems that the benchmarks of speed compare, each in a process of its own."""

"""Shared by the speed benchmarks: models, sentences, the machine's limits, parity, tables."""

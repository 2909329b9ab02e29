"""Adapters of elmokit for other libraries: one module per library, which imports that library."""

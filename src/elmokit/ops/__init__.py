"""The operations that take most of the time: fast paths, a plain reference for each, and dispatchers between them."""

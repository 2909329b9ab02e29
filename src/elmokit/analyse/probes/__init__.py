"""Probes, which measure what each layer knows: parts of speech, word senses, and words in two contexts."""

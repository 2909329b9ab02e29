"""What each layer knows: parts of speech, word senses, the same word in two contexts."""

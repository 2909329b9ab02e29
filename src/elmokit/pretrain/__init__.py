"""From raw text to a trained bidirectional language model."""

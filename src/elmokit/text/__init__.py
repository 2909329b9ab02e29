"""From text to ids: tokens, characters, vocabulary."""

"""Every ELMo on disk: told apart by content, read into one form, written back in two."""

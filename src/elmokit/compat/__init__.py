"""The call signatures of older ELMo systems over elmokit's network."""

"""elmokit inside other libraries: one module per library, which is imported only when the module is."""

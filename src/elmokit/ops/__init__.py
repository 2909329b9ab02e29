"""Hot spots: every fast path is next to a plain reference, and a dispatcher says what it chose and why."""

"""What each command of `elmo` does, without how it is typed."""

"""`python -m elmokit` is `elmo`."""

from elmokit.cli import main

if __name__ == "__main__":
    main()

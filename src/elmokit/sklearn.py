"""A short import path for `elmokit.integrations.sklearn`."""

from elmokit.integrations.sklearn import ElmoVectorizer

__all__ = ["ElmoVectorizer"]

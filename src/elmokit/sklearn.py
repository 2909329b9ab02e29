"""The short name of `elmokit.integrations.sklearn`."""

from elmokit.integrations.sklearn import ElmoVectorizer

__all__ = ["ElmoVectorizer"]

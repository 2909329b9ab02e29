"""Every format in which a model is stored, in one registry: detected from its files, read into one form, written back.

from elmokit.formats import Format, register_format
"""

from elmokit.formats.registry import Format, ModelFiles, formats, register_format, unregister_format

__all__ = ["Format", "ModelFiles", "formats", "register_format", "unregister_format"]

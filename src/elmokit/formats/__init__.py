"""The registry of model formats: each detects its files, reads them into a `Checkpoint`, and may write one.

from elmokit.formats import Format, register_format
"""

from elmokit.formats.registry import Format, ModelFiles, formats, register_format, unregister_format

__all__ = ["Format", "ModelFiles", "formats", "register_format", "unregister_format"]

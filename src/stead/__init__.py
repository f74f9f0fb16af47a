"""stead: a scheduler for Ray and Kubernetes. The public names, nothing else.

Rule: importing stead imports nothing. Each name is written once, in ``__init__.pyi``: type checkers read it there, and
here the same lines say which module to load when a name is first used.
"""

from __future__ import annotations

import ast
from importlib import import_module

__version__ = "0.1.0"

_MODULE_OF = {
    alias.name: str(line.module)
    for line in ast.parse(__spec__.loader.get_data(f"{__path__[0]}/__init__.pyi")).body
    if isinstance(line, ast.ImportFrom)
    for alias in line.names
}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'stead' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        from stead.errors import Unsupported

        raise Unsupported(f"stead.{name} needs Ray; install it with pip install 'stead[ray]'") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

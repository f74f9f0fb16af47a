"""An error about a missing package names the extra that installs it."""

from __future__ import annotations

import sys

import pytest

import stead
from stead.errors import Unsupported


@pytest.mark.parametrize("name", ["init", "taint", "placement_group"])
def test_names_for_ray_say_which_extra_they_need(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [each for each in sys.modules if each == "stead.ray" or each.startswith("stead.ray.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unsupported, match=rf"stead\.{name} needs Ray; install it with pip install 'stead\[ray\]'"):
        getattr(stead, name)

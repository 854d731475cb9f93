"""Further tests of the command, with stand-ins for the datasets, are in tests/data."""

import torch

from tacit.cli import main
from tacit.data import cache, catalog
from tacit.data.sources import Url


class Local(Url):
    def fetch(self, folder):
        return []


def test_intact_content_is_verified(tmp_path, capsys, monkeypatch):
    tensors = {"x": torch.arange(3)}
    sources = ((Local("", ()), lambda paths: tensors),)
    recipe = cache.Recipe("mnist", "stand-in", 1, sources, cache.content_digest(tensors))
    monkeypatch.setitem(catalog.CATALOG, "mnist", recipe)
    assert main(["data", "fetch", "mnist", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["data", "verify", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "mnist: ok\n"

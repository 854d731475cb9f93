import subprocess
import sys

import pytest

from tacit._support.lazy_imports import lazy_attributes


def test_modules_and_objects_are_found():
    get = lazy_attributes("mine", {"decode": "json.decoder", "Decoder": "json:JSONDecoder"})
    import json

    assert get("decode") is json.decoder
    assert get("Decoder") is json.JSONDecoder


def test_unknown_names_are_attribute_errors():
    get = lazy_attributes("mine", {})
    with pytest.raises(AttributeError, match="module 'mine' has no attribute 'x'"):
        get("x")


def test_nothing_is_imported_before_the_first_access():
    code = (
        "import sys; from tacit._support.lazy_imports import lazy_attributes\n"
        "get = lazy_attributes('mine', {'wave': 'wave'})\n"
        "assert 'wave' not in sys.modules; get('wave'); assert 'wave' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

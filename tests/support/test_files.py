import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tacit._support import files
from tacit._support.memory import peak_memory

KEY = "tacit_checkpoint"


def write_header(path, text, tensors=None, key=KEY):
    """Write a file with any text as its header."""
    save_file(tensors or {"a": torch.zeros(1)}, path, metadata={key: text})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.safetensors"


@pytest.mark.parametrize("dtype", files.DTYPES)
def test_tensors_of_all_dtypes_and_shapes_are_read_back(dtype, path):
    torch.manual_seed(0)
    tensors = {
        name: torch.randint(0, 2, shape).to(dtype)
        for name, shape in {"scalar": (), "empty": (0, 3), "one": (1,), "matrix": (3, 5)}.items()
    }
    tensors |= {"transposed": tensors["matrix"].T, "shared": tensors["matrix"][0]}
    tensors["image"] = torch.ones(2, 3, 4, 4).to(dtype).to(memory_format=torch.channels_last)
    files.write(path, "key", {"x": [1, "é"]}, tensors)
    header, found = files.read(path, "key", "a test")
    assert header == {"version": 1, "x": [1, "é"]}
    for each in (found, load_file(path)):  # also by safetensors itself
        assert each.keys() == tensors.keys()
        assert all(each[name].dtype == dtype for name in each)
        assert all(torch.equal(each[name], tensors[name]) for name in each)


def test_parameters_and_no_tensors_are_written(path):
    files.write(path, "key", {}, {"w": torch.nn.Parameter(torch.ones(2))})
    assert files.read(path, "key", "a test")[1]["w"].tolist() == [1, 1]
    files.write(path, "key", {}, {})
    assert files.read(path, "key", "a test") == ({"version": 1}, {})


def test_dtypes_that_a_file_cant_hold_are_refused(path):
    with pytest.raises(TypeError, match="'z' has dtype torch.complex64; a file can hold torch"):
        files.write(path, "key", {}, {"z": torch.zeros(1, dtype=torch.complex64)})
    assert list(path.parent.iterdir()) == []


def test_a_write_copies_no_more_than_one_tensor(path):
    tensors = {str(i): torch.ones(2_000_000) for i in range(10)}  # 80 MB
    with peak_memory() as peak:
        files.write(path, "key", {}, tensors)
    assert not peak() > 30e6  # NaN where it can't be measured


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is damaged: its header is not JSON"),
        ("{'a': 1}", "is damaged: its header is not JSON"),
        ("[" * 100_000, "is damaged: its header is not JSON"),
        ("1" * 10_000, "is damaged: its header is"),
        ("[]", r"is damaged: header: expected an object, received \[\]"),
        ("null", "is damaged: header: expected an object, received None"),
        ("3", "is damaged: header: expected an object, received 3"),
        ("{}", "is damaged: header: 'version' is missing"),
        ('{"version": "1"}', "has version '1', this library reads 1"),
        ('{"version": true}', "has version True, this library reads 1"),
        ('{"version": 1.0}', "has version 1.0, this library reads 1"),
        ('{"version": null}', "has version None, this library reads 1"),
        ('{"version": [1]}', r"has version \[1\], this library reads 1"),
        ('{"version": 2}', "has version 2, this library reads 1"),
        ('{"version": 1}', "is damaged: header: 'step' is missing"),
        ('{"version": 1, "step": "3"}', r"header\['step'\]: expected an integer from 0 to .* '3'"),
        ('{"version": 1, "step": -1}', r"header\['step'\]: expected an integer from 0"),
    ],
)
def test_damaged_headers_are_refused(text, match, path):
    write_header(path, text)
    with pytest.raises(ValueError, match=match):
        files.read(path, KEY, "tacit.fit")


def test_the_time_of_a_cached_network_must_be_a_number(path):
    write_header(path, '{"version": 1}', key="tacit_network")
    with pytest.raises(ValueError, match="'seconds' is missing"):
        files.read(path, "tacit_network", "tacit bench")


@pytest.mark.parametrize("metadata", [None, {"other": "{}"}])
def test_files_of_another_kind_are_refused(metadata, path):
    save_file({"a": torch.zeros(1)}, path, metadata=metadata)
    with pytest.raises(ValueError, match="was not written by tacit.fit"):
        files.read(path, KEY, "tacit.fit")


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 100, b"{}" * 50])
def test_files_that_are_no_safetensors_are_refused(content, path):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="file.safetensors can't be read"):
        files.read(path, KEY, "tacit.fit")


def test_folders_and_missing_files_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match="can't be read"):
            files.read(path, KEY, "tacit.fit")


@pytest.mark.parametrize("place", [-1, -17, 0.9, 0.5])
def test_a_flipped_bit_is_noticed(place, path):
    files.write(path, KEY, {"step": 1}, {"a": torch.ones(500)})
    content = bytearray(path.read_bytes())
    content[place if place < 0 else int(place * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: its content doesn't match its checksum"):
        files.read(path, KEY, "tacit.fit")


def test_a_changed_header_is_noticed(path):
    files.write(path, KEY, {"step": 123456}, {"a": torch.ones(5)})
    path.write_bytes(path.read_bytes().replace(b"123456", b"123457"))
    with pytest.raises(ValueError, match="doesn't match its checksum"):
        files.read(path, KEY, "tacit.fit")


def test_files_with_a_digest_of_their_own_have_no_checksum(path):
    files.write(path, "key", {"sha256": "..."}, {"a": torch.ones(5)})
    assert files.CHECKSUM.encode() not in path.read_bytes()
    files.write(path, "key", {"text": f'"{files.CHECKSUM}": "12345678"'}, {"a": torch.ones(5)})
    files.read(path, "key", "a test")


def test_a_write_that_fails_leaves_nothing(tmp_path):
    (folder := tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder could not be written"):
        files.write(folder, "key", {}, {})
    with pytest.raises(OSError, match="could not be written"):
        files.write(tmp_path / "missing" / "file", "key", {}, {})
    with pytest.raises(TypeError, match="not JSON serializable"):
        files.write(tmp_path / "file", "key", {"x": object()}, {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "file", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == [folder]


def test_json_is_written(tmp_path):
    files.write_json(tmp_path / "file", {"a": [1, "é"]})
    assert json.loads((tmp_path / "file").read_text()) == {"a": [1, "é"]}


def test_tensors_must_fit_the_model():
    own = {"a": torch.zeros(2, 3), "n": torch.tensor(1)}
    files.check_fits("f", own, {"a": torch.zeros(2, 3).double(), "n": torch.tensor(5)})
    for found, match in [
        (
            {"a": torch.zeros(3, 2), "n": torch.tensor(1)},
            r"'a' is \(2, 3\) in the model and \(3, 2",
        ),
        ({"a": torch.zeros(2, 3)}, r"'n' is \(\) in the model and missing in the file"),
        ({**own, "x": torch.zeros(1)}, r"'x' is missing in the model and \(1,\) in the file"),
        (
            {**own, "a": torch.zeros(2, 3).int()},
            "'a' is torch.float32 in the model and torch.int32",
        ),
        ({**own, "n": torch.tensor(1.0)}, "'n' is torch.int64 in the model and torch.float32"),
    ]:
        with pytest.raises(ValueError, match=f"f doesn't fit the model: {match}"):
            files.check_fits("f", own, found)

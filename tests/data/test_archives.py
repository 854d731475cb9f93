import gzip
import io
import tarfile
import zipfile

import pytest

from tacit.data.archives import members


def tar_bytes(files, mode="w"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def debian(files):
    parts = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", files)]
    found = b"!<arch>\n"
    for name, content in parts:
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        found += header.encode() + content + b"\n" * (len(content) % 2)
    return found


FILES = {"a/one.txt": b"1", "two.txt": b"22"}


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz", "deb"])
def test_all_kinds(kind, tmp_path):
    path = tmp_path / f"archive.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in FILES.items():
                archive.writestr(name, content)
    elif kind == "deb":
        path.write_bytes(debian(tar_bytes(FILES, "w:xz")))
    else:
        path.write_bytes(tar_bytes(FILES, {"tar": "w"}.get(kind, f"w:{kind[4:]}")))
    assert dict(members(path)) == FILES
    assert dict(members(path, lambda name: "one" in name)) == {"a/one.txt": b"1"}


def test_compressed_files(tmp_path):
    (tmp_path / "single.gz").write_bytes(gzip.compress(b"content"))
    assert dict(members(tmp_path / "single.gz")) == {"single": b"content"}
    (tmp_path / "several.tar").write_bytes(tar_bytes({"x.gz": gzip.compress(b"content")}))
    assert dict(members(tmp_path / "several.tar")) == {"x": b"content"}
    (tmp_path / "plain").write_bytes(b"content")
    assert dict(members(tmp_path / "plain")) == {"plain": b"content"}


def test_path_traversal_writes_nothing(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    path = inner / "evil.tar"
    path.write_bytes(tar_bytes({"../../escaped": b"x", "/tmp/escaped-too": b"x"}))
    assert len(dict(members(path))) == 2
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["evil.tar", "inner"]


def test_links_are_skipped(tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / "links.tar").write_bytes(stream.getvalue())
    assert dict(members(tmp_path / "links.tar")) == {}


@pytest.mark.parametrize("kind", ["zip", "gz", "tar"])
def test_members_that_are_too_large(kind, tmp_path):
    path, large = tmp_path / f"bomb.{kind}", bytes(100_000)
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("large", large)
    elif kind == "gz":
        path.write_bytes(gzip.compress(large))
    else:
        path.write_bytes(tar_bytes({"large.gz": gzip.compress(large)}))
    with pytest.raises(ValueError, match="is larger than 1000 bytes; not read"):
        list(members(path, limit=1000))


@pytest.mark.parametrize("kind", ["zip", "gz", "tar.xz"])
def test_corrupted_bytes(kind, tmp_path):
    path = tmp_path / f"archive.{kind}"
    noise = bytes(i * i * 7 % 251 for i in range(20_000))
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", noise)
    elif kind == "gz":
        path.write_bytes(gzip.compress(noise))
    else:
        path.write_bytes(tar_bytes({"a": noise}, "w:xz"))
    content = bytearray(path.read_bytes())
    for i in range(len(content) // 2, len(content) // 2 + 20):
        content[i] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"archive\.\S+ can't be read"):
        list(members(path))


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "gz", "deb"])
def test_truncated_and_invalid_archives(kind, tmp_path):
    path = tmp_path / f"archive.{kind}"
    noise = bytes(i * 7 % 251 for i in range(5000))
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", noise)
        content = bytearray(path.read_bytes())
        content[100] ^= 255
        path.write_bytes(bytes(content))
    elif kind == "tar.gz":
        path.write_bytes(tar_bytes({"a": noise}, "w:gz")[:300])
    elif kind == "gz":
        path.write_bytes(gzip.compress(noise)[:50])
    else:
        path.write_bytes(b"not a package")
    with pytest.raises(ValueError, match=r"archive\.\S+ "):
        list(members(path))


@pytest.mark.parametrize("size", [b"-60       ", b"          ", b"six       "])
def test_a_debian_member_without_a_valid_size(size, tmp_path):
    """A size of -60 would read the same header for ever."""
    path = tmp_path / "package.deb"
    header = b"control.tar.gz  " + b"0           0     0     100644  " + size + b"`\n"
    assert len(header) == 60
    path.write_bytes(b"!<arch>\n" + header + bytes(10))
    with pytest.raises(ValueError, match="a member has no valid name and size"):
        list(members(path))

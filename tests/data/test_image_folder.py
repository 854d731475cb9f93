"""Images in folders: layouts, splits, decoding and the cache."""

import os
import sys
import threading
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.data import image_cache, image_folder
from tacit.data.decoding import decode_file
from tacit.data.image_cache import statistics
from tacit.data.image_files import ImageFile, split_files

COLOURS = {"blue": (20, 30, 220), "green": (10, 200, 40), "red": (210, 20, 30)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "cache"))


def picture(path, colour=(100, 150, 200), size=(12, 10), seed=0, **settings):
    """Write an image of a colour with noise."""
    noise = np.random.default_rng(seed).integers(0, 40, (size[1], size[0], 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((noise + colour).clip(0, 255).astype(np.uint8)).save(path, **settings)
    return path


def make_folder(root, counts, suffix=".png"):
    """Write images of classes; counts: class -> number."""
    for name, count in counts.items():
        for i in range(count):
            colour = COLOURS.get(name, (90, 90, 90))
            picture(root / name / f"{i:03d}{suffix}", colour, seed=i)
    return root


def assert_decoded(root, splits, size=(8, 8)):
    """Assert that all images are those of the files that they are named after."""
    for part in splits:
        for name, pixels in zip(part.names, part.pixels, strict=True):
            assert torch.equal(pixels, torch.tensor(decode_file(root / name, *size, 3)))


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "images", {"red": 20, "blue": 10, "green": 30})


class TestSplits:
    def test_classes_and_parts(self, folder):
        splits = image_folder(folder, 8)
        for part, sizes in zip(splits, ((8, 24, 16), (1, 3, 2), (1, 3, 2)), strict=True):
            assert part.class_names == ("blue", "green", "red")
            assert tuple(part.targets.bincount().tolist()) == sizes
            assert part.pixels.shape[1:] == (3, 8, 8)
            for name, label in zip(part.names, part.targets, strict=True):
                assert name.startswith(f"{part.class_names[label]}/")
        names = [name for part in splits for name in part.names]
        assert len(set(names)) == len(names) == 60

    def test_pixels_belong_to_their_names(self, folder):
        assert_decoded(folder, image_folder(folder, (5, 6)), (5, 6))

    def test_the_seed_decides(self, folder):
        first, again, other = (image_folder(folder, 8, seed=seed) for seed in (0, 0, 1))
        assert first.test.names == again.test.names
        assert set(first.test.names) != set(other.test.names)

    def test_classes_are_mixed(self, folder):
        assert len(image_folder(folder, 8).train.targets[:10].unique()) > 1

    def test_new_files_leave_others_in_their_part(self, folder):
        before = image_folder(folder, 8)
        picture(folder / "red" / "new.png")
        after = image_folder(folder, 8)
        moved = set(before.train.names) - set(after.train.names)
        assert len(moved) <= 1

    @pytest.mark.parametrize(
        ("count", "expected"),
        [(1, (1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1)), (9, (7, 1, 1)), (150, (120, 15, 15))],
    )
    def test_small_classes(self, count, expected):
        files = [
            ImageFile(f"{label}/{i}", Path(), label, "train")
            for label, number in (("a", count), ("b", 20))
            for i in range(number)
        ]
        parts = split_files(files, 0.1, 0.1, 0)
        assert tuple(sum(f.label == "a" for f in part) for part in parts.values()) == expected

    def test_without_validation_or_test_set(self, folder):
        train, validation, test = image_folder(folder, 8, validation=0, test=0.2)
        assert validation is None
        assert (len(train), len(test)) == (48, 12)

    def test_only_the_training_set_is_augmented(self, folder):
        augment = tacit.data.Augmentation(crop=1)
        assert [s.augment for s in image_folder(folder, 8, augment=augment)] == [
            augment,
            None,
            None,
        ]


class TestLayouts:
    @pytest.mark.parametrize("name", ["val", "valid", "validation", "Val"])
    def test_split_folders(self, name, tmp_path):
        make_folder(tmp_path / "a" / "train", {"red": 5, "blue": 4})
        make_folder(tmp_path / "a" / name, {"red": 3})
        make_folder(tmp_path / "a" / "test", {"red": 1, "blue": 2})
        train, validation, test = image_folder(tmp_path / "a", 8)
        assert (len(train), len(validation), len(test)) == (9, 3, 3)
        assert validation.class_names == ("blue", "red")
        assert validation.targets.tolist() == [1, 1, 1]
        assert set(validation.names) == {f"{name}/red/{i:03d}.png" for i in range(3)}

    def test_missing_split_folders_are_split_off(self, tmp_path):
        make_folder(tmp_path / "a" / "train", {"red": 20, "blue": 20})
        make_folder(tmp_path / "a" / "val", {"red": 3})
        splits = image_folder(tmp_path / "a", 8)
        assert [len(part) for part in splits] == [36, 3, 4]

    def test_a_class_of_trains(self, tmp_path):
        make_folder(tmp_path / "a", {"car": 4, "train": 4})
        assert image_folder(tmp_path / "a", 8).train.class_names == ("car", "train")

    def test_nested_hidden_and_other_files(self, tmp_path):
        root = make_folder(tmp_path / "a", {"red": 4, "blue": 4})
        picture(root / "red" / "more" / "deep" / "x.PNG")
        picture(root / "red" / ".hidden.png")
        picture(root / ".git" / "x.png")
        picture(root / "red" / ".thumbnails" / "x.png")
        (root / "red" / "notes.txt").write_text("not an image")
        (root / "README.md").write_text("not an image")
        splits = image_folder(root, 8)
        names = {name for part in splits for name in part.names}
        assert len(names) == 9
        assert "red/more/deep/x.PNG" in names

    @pytest.mark.parametrize("split", [False, True])
    def test_a_table(self, split, tmp_path):
        make_folder(tmp_path / "a", {"red": 6, "blue": 6})
        parts = ("train", "train", "train", "val", "val", "test")
        lines = ["\ufefflabel, File" + (",split" if split else "")]
        lines += [
            f"{name.title()},a/{name}/{i:03d}.png" + (f",{part}" if split else "")
            for i, part in enumerate(parts)
            for name in ("red", "blue")
        ]
        (tmp_path / "labels.csv").write_text("\n".join([*lines, "", ""]), encoding="utf-8")
        splits = image_folder(tmp_path / "labels.csv", 8)
        assert [len(part) for part in splits] == ([6, 4, 2] if split else [8, 2, 2])
        assert splits.train.class_names == ("Blue", "Red")
        for name, label in zip(splits.train.names, splits.train.targets, strict=True):
            assert splits.train.class_names[label].lower() == name.split("/")[1]


def layout_errors():
    yield "no_folder", lambda root: None, FileNotFoundError, "there is no folder or CSV file at"
    yield "empty", lambda root: root.mkdir(), ValueError, "no images in .*folder for each class"
    yield (
        "loose_files",
        lambda root: [picture(root / f"{i}.png") for i in range(12)],
        ValueError,
        r"images directly in it: 0.png, .* and 2 more. Move them .* CSV",
    )
    yield (
        "loose_file_beside_classes",
        lambda root: (make_folder(root, {"red": 2, "blue": 2}), picture(root / "x.png")),
        ValueError,
        "images directly in it: x.png",
    )
    yield (
        "loose_file_beside_splits",
        lambda root: (
            make_folder(root / "train", {"red": 2, "blue": 2}),
            picture(root / "x.png"),
        ),
        ValueError,
        "images directly in it: x.png",
    )
    yield (
        "an_empty_class",
        lambda root: (make_folder(root, {"red": 2, "blue": 2}), (root / "green").mkdir()),
        ValueError,
        r"no images in these folders of .*: green. Expected .*\.jpg",
    )
    yield (
        "one_class",
        lambda root: make_folder(root, {"red": 3}),
        ValueError,
        "expected at least two classes in .*, found red",
    )
    yield (
        "one_level_too_high",
        lambda root: make_folder(root / "data", {"red": 3, "blue": 3}),
        ValueError,
        "found data. Its folders are blue, red: pass .*data",
    )
    yield (
        "splits_beside_classes",
        lambda root: [make_folder(root / s, {"red": 2}) for s in ("train", "test", "extra")],
        ValueError,
        "received test, train beside extra",
    )
    yield (
        "no_train",
        lambda root: [make_folder(root / s, {"red": 2, "blue": 2}) for s in ("val", "test")],
        ValueError,
        r"or train, validation \(or val\) and test; received test, val",
    )
    yield (
        "two_validation_sets",
        lambda root: [
            make_folder(root / s, {"red": 2, "blue": 2}) for s in ("train", "val", "validation")
        ],
        ValueError,
        "received train, val, validation",
    )
    yield (
        "a_class_only_for_testing",
        lambda root: (
            make_folder(root / "train", {"red": 2, "blue": 2}),
            make_folder(root / "test", {"red": 2, "green": 2}),
        ),
        ValueError,
        "classes without training images: green",
    )
    yield (
        "an_empty_test_set",
        lambda root: (make_folder(root / "train", {"red": 2, "blue": 2}), (root / "test").mkdir()),
        ValueError,
        "no images in .*test",
    )
    yield (
        "too_few_for_validation",
        lambda root: make_folder(root, {"red": 1, "blue": 1}),
        ValueError,
        "no class has enough images for validation. Pass validation=0 for none",
    )


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [pytest.param(*case[1:], id=case[0]) for case in layout_errors()],
)
def test_folders_that_cannot_be_used(make, kind, message, tmp_path):
    make(tmp_path / "images")
    with pytest.raises(kind, match=message):
        image_folder(tmp_path / "images")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: expected a first line"),
        ("name,label\nx.png,a", "received name, label"),
        ("file,label\n", "lists no files"),
        ("file,label\nx.png,a\ny.png,", "line 3 of .* has no label"),
        ("file,label\n,a", "line 2 of .* has no file"),
        ("file,label\nx.png", "line 2 of .* has 1 values, expected 2"),
        ("file,label,split\nx.png,a,dev", "line 2 .*in the column split, received 'dev'"),
        ("file,label\nx.png,a\n./x.png,b", "lists files more than once: .*x.png"),
        ("file,label\nx.png,a\ny.png,a", "expected at least two classes"),
    ],
)
def test_tables_that_cannot_be_used(text, message, tmp_path):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        image_folder(tmp_path / "labels.csv")


def test_another_file_is_no_table(tmp_path):
    (tmp_path / "labels.json").write_text("{}")
    with pytest.raises(ValueError, match=r"expected a folder or a CSV file, received .*\.json"):
        image_folder(tmp_path / "labels.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size: expected an integer of at least 1"),
        ({"size": (8, 8, 3)}, "size: expected an integer, or height and width"),
        ({"size": "64"}, "size: expected an integer, or height and width"),
        ({"channels": 4}, "channels: expected 3 for colour or 1 for grey, received 4"),
        ({"validation": 0.5, "test": 0.5}, "sum below 1.* received 0.5 and 0.5"),
        ({"validation": 20}, "validation: expected a number from 0 to 1"),
        ({"seed": 0.5}, "seed: expected an integer"),
        ({"workers": 0}, "workers: expected an integer of at least 1"),
        ({"augment": True}, "augment: expected a function of a batch"),
    ],
)
def test_impossible_arguments(settings, message, folder):
    with pytest.raises((ValueError, TypeError), match=message):
        image_folder(folder, **settings)


def test_without_pillow(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"Pillow is needed .*'tacit-torch\[data\]'"):
        image_folder(folder)


class TestDecoding:
    @pytest.mark.parametrize("size", [(30, 20), (20, 30), (16, 16), (5, 4), (100, 3)])
    @pytest.mark.parametrize("wanted", [(8, 8), (6, 9)])
    def test_the_image_covers_the_size_and_its_centre_is_kept(self, size, wanted, tmp_path):
        path = picture(tmp_path / "x.png", size=size)
        fitted = ImageOps.fit(Image.open(path), wanted[::-1], Image.Resampling.BILINEAR)
        found = decode_file(path, *wanted, 3).transpose(1, 2, 0)
        assert np.abs(found.astype(int) - np.asarray(fitted)).max() <= 1

    def test_a_known_crop(self, tmp_path):
        columns = np.repeat(np.arange(12, dtype=np.uint8)[None], 4, 0)
        Image.fromarray(columns).save(tmp_path / "x.png")
        assert decode_file(tmp_path / "x.png", 4, 4, 1)[0].tolist() == [[4, 5, 6, 7]] * 4
        assert decode_file(tmp_path / "x.png", 4, 6, 1)[0].tolist() == [[3, 4, 5, 6, 7, 8]] * 4
        assert decode_file(tmp_path / "x.png", 4, 12, 1)[0].tolist() == columns.tolist()

    def test_orientation(self, tmp_path):
        path = tmp_path / "x.jpg"
        image = Image.new("L", (16, 16))
        image.paste(255, (0, 0, 16, 8))  # bright above, stored rotated
        exif = Image.Exif()
        exif[0x0112] = 6  # to be shown rotated by 90 degrees clockwise
        image.save(path, exif=exif)
        found = decode_file(path, 16, 16, 1)[0]
        assert found[:, 8:].min() > 200
        assert found[:, :8].max() < 50

    @pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "1", "I;16"])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_modes(self, mode, channels, tmp_path):
        value = 255 if mode == "1" else 128
        if mode == "I;16":  # 16 bits: Pillow itself would clip to 255
            image = Image.fromarray(np.full((9, 9), 128 * 256, np.uint16))
        elif mode == "P":
            image = Image.new("RGB", (9, 9), (128, 128, 128)).quantize(2)
        else:
            image = Image.new("RGB", (9, 9), (value, value, value)).convert(mode)
        path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
        image.save(path, **({"transparency": b"\x00\xff"} if mode == "P" else {}))
        found = decode_file(path, 8, 8, channels)
        assert found.shape == (channels, 8, 8)
        assert np.abs(found.astype(int) - value).max() <= 1

    def test_numbers_of_unknown_range(self, tmp_path):
        Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "x.tif")
        with pytest.raises(ValueError, match="mode F have no fixed range"):
            decode_file(tmp_path / "x.tif", 4, 4, 3)

    @pytest.mark.parametrize("suffix", [".jpg", ".gif", ".bmp", ".webp", ".tiff"])
    def test_formats(self, suffix, tmp_path):
        make_folder(tmp_path / "a", {"red": 3, "blue": 3}, suffix)
        train = image_folder(tmp_path / "a", 8, test=0).train
        assert len(train) == 4
        blue = train.pixels[train.targets == 0].float().mean((0, 2, 3))
        assert blue[2] > 200 > 80 > blue[0]

    def test_a_large_photograph(self, tmp_path):
        """JPEG files are decoded at a reduced size."""
        path = picture(tmp_path / "x.jpg", size=(400, 320), quality=95)
        image = np.asarray(
            Image.open(path).resize((8, 8), Image.Resampling.BILINEAR, (40, 0, 360, 320))
        )
        found = decode_file(path, 8, 8, 3).transpose(1, 2, 0)
        assert np.abs(found.astype(int) - image).max() <= 3

    def test_grey(self, folder):
        images = image_folder(folder, 8, channels=1).train
        assert images.pixels.shape[1:] == (1, 8, 8)
        assert len(images.mean) == 1


class TestBroken:
    @pytest.fixture
    def damaged(self, folder):
        (folder / "red" / "003.png").write_bytes(b"not a PNG")
        content = (folder / "red" / "004.png").read_bytes()
        (folder / "red" / "004.png").write_bytes(content[: len(content) // 2])
        return folder

    def test_they_are_named(self, damaged):
        with pytest.raises(ValueError, match="2 of 60 files can't be read") as caught:
            image_folder(damaged, 8)
        text = str(caught.value)
        assert "red/003.png (not an image that Pillow can read)" in text
        assert "red/004.png (" in text
        assert text.endswith("or pass skip_broken=True.")
        assert not list(Path(os.environ["TACIT_DATA"]).rglob("*.safetensors"))

    def test_at_most_ten_are_named(self, folder):
        for path in (folder / "green").iterdir():
            path.write_bytes(b"")
        with pytest.raises(ValueError, match=r"30 of 60 files .* and 20 more\. Repair") as caught:
            image_folder(folder, 8)
        assert str(caught.value).count("green/") == 10

    @pytest.mark.parametrize("cache", [True, False])
    def test_they_are_skipped_on_request(self, cache, damaged):
        for _ in range(2):  # the second time from the cache
            with pytest.warns(UserWarning, match="skipped 2 of 60 files.*red/003.png"):
                splits = image_folder(damaged, 8, skip_broken=True, cache=cache)
            names = [name for part in splits for name in part.names]
            assert len(names) == 58
            assert not {"red/003.png", "red/004.png"} & set(names)
            assert_decoded(damaged, splits)
            whole = splits.train.pixels.double() / 255
            assert splits.train.mean == pytest.approx(whole.mean((0, 2, 3)).tolist())

    def test_a_cache_without_them_is_not_taken_for_whole(self, damaged):
        with pytest.warns(UserWarning, match="skipped"):
            image_folder(damaged, 8, skip_broken=True)
        with pytest.raises(ValueError, match="2 of 60 files can't be read: .*not an image"):
            image_folder(damaged, 8)

    def test_files_that_are_readable_again(self, folder):
        path = folder / "red" / "003.png"
        content, stamp = path.read_bytes(), path.stat()
        path.write_bytes(bytes(len(content)))
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        with pytest.warns(UserWarning, match="skipped 1"):
            image_folder(folder, 8, skip_broken=True)
        path.write_bytes(content)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        splits = image_folder(folder, 8)
        assert sum(map(len, splits)) == 60
        assert_decoded(folder, splits)

    def test_missing_files_of_a_table(self, folder):
        lines = [f"{name}/{i:03d}.png,{name}" for name in ("red", "blue") for i in range(12)]
        (folder / "x.csv").write_text("\n".join(["file,label", *lines]))
        with pytest.raises(ValueError, match=r"2 of 24 files .*blue/01\d.png \(No such file"):
            image_folder(folder / "x.csv", 8)

    def test_nothing_is_left(self, folder):
        for path in (folder / "green").iterdir():
            path.write_bytes(b"")
        with (
            pytest.warns(UserWarning, match="skipped"),
            pytest.raises(ValueError, match="no images can be read of these classes: green"),
        ):
            image_folder(folder, 8, skip_broken=True)

    def test_an_emptied_part(self, tmp_path):
        make_folder(tmp_path / "a" / "train", {"red": 3, "blue": 3})
        (tmp_path / "a" / "val" / "red").mkdir(parents=True)
        (tmp_path / "a" / "val" / "red" / "x.png").write_bytes(b"")
        with (
            pytest.warns(UserWarning, match="skipped"),
            pytest.raises(ValueError, match="no images can be read of the validation set"),
        ):
            image_folder(tmp_path / "a", 8, skip_broken=True, cache=False)


@pytest.fixture
def decodes(monkeypatch):
    """Return the list of files decoded from now on."""
    found = []

    def counted(path, *args):
        found.append(path)
        return decode_file(path, *args)

    monkeypatch.setattr("tacit.data.decoding.decode_file", counted)
    return found


class TestCache:
    def test_files_are_decoded_once(self, folder, decodes):
        first = image_folder(folder, 8)
        assert len(decodes) == 60
        again = image_folder(folder, 8)
        assert len(decodes) == 60
        for one, two in zip(first, again, strict=True):
            assert torch.equal(one.pixels, two.pixels)
            assert torch.equal(one.targets, two.targets)
            assert (one.mean, one.std, one.names) == (two.mean, two.std, two.names)

    @pytest.mark.parametrize(
        "settings", [{"size": 9}, {"size": (8, 9)}, {"channels": 1}, {"seed": 1}, {"test": 0.3}]
    )
    def test_other_settings_have_their_own(self, settings, folder, decodes):
        image_folder(folder, 8)
        image_folder(folder, **{"size": 8, **settings})
        assert len(decodes) == 120
        image_folder(folder, 8)
        assert len(decodes) == 120

    def test_changed_files_are_decoded_again(self, folder, decodes):
        image_folder(folder, 8)
        path = folder / "red" / "000.png"
        stamp = path.stat()
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1_000_000))
        image_folder(folder, 8)
        assert len(decodes) == 120
        path.unlink()
        assert sum(map(len, image_folder(folder, 8))) == 59

    def test_without(self, folder, decodes, tmp_path):
        for _ in range(2):
            splits = image_folder(folder, 8, cache=False)
        assert len(decodes) == 120
        assert not (tmp_path / "cache").exists()
        cached = image_folder(folder, 8)
        assert torch.equal(splits.train.pixels, cached.train.pixels)
        assert (splits.train.mean, splits.train.std) == (cached.train.mean, cached.train.std)

    def test_in_a_folder_of_its_own(self, folder, tmp_path):
        image_folder(folder, 8, cache=tmp_path / "mine")
        assert len(list((tmp_path / "mine" / "image_folders").glob("*.safetensors"))) == 1
        assert not (tmp_path / "cache").exists()

    def test_a_damaged_file_is_replaced(self, folder, decodes):
        image_folder(folder, 8)
        (path,) = Path(os.environ["TACIT_DATA"]).rglob("*.safetensors")
        path.write_bytes(path.read_bytes()[:-100])
        assert len(image_folder(folder, 8).train) == 48
        assert len(decodes) == 120

    def test_two_at_once_decode_once(self, folder, decodes):
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(image_folder(folder, 8, workers=1)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(decodes) == 60
        assert torch.equal(found[0].train.pixels, found[1].train.pixels)

    def test_all_parts_are_views_of_one_mapping(self, folder):
        splits = image_folder(folder, 8)
        storages = {part.pixels.untyped_storage().data_ptr() for part in splits}
        assert len(storages) == 1

    def test_memory_is_bounded(self, tmp_path, monkeypatch):
        """Pixels are written to the mapping, image by image."""
        monkeypatch.setattr(
            "tacit.data.decoding.decode_file",
            lambda path, height, width, channels: np.ones((channels, height, width), np.uint8),
        )
        files = [ImageFile(f"{i}", tmp_path / f"{i}", "a", "train") for i in range(1000)]
        task = image_cache.Decoding(files, 800, (3, 64, 64), 2, False)
        tracemalloc.start()
        try:
            found = image_cache.decoded(task, tmp_path / "cache")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert found.pixels.shape == (1000, 3, 64, 64)
        assert bool((found.pixels == 1).all())
        assert peak < found.pixels.numel() / 4

    def test_an_interrupt_leaves_nothing(self, folder, monkeypatch):
        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr("tacit.data.decoding.decode_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            image_folder(folder, 8)
        left = [p.suffix for p in Path(os.environ["TACIT_DATA"]).rglob("*") if p.is_file()]
        assert left in ([], [".lock"])


def test_statistics(monkeypatch):
    pixels = torch.randint(0, 256, (50, 3, 6, 5), dtype=torch.uint8)
    pixels[:, 2] = 7
    monkeypatch.setattr(image_cache, "BLOCK", 400)
    whole = pixels.double().transpose(0, 1).flatten(1) / 255
    expected = torch.stack([whole.mean(1), whole.std(1, correction=0)])
    expected[1, 2] = 1  # a constant channel is only centred
    assert_close(statistics(pixels), expected, rtol=0, atol=1e-12)


def test_the_training_images_are_normalised(folder):
    train = image_folder(folder, 8).train
    x = train.normalised().double()
    assert_close(x.mean((0, 2, 3)), torch.zeros(3).double(), rtol=0, atol=1e-5)
    assert_close(x.std((0, 2, 3), correction=0), torch.ones(3).double(), rtol=0, atol=1e-5)


def test_end_to_end(folder):
    augment = tacit.data.Augmentation(crop=1, colour=0.1)
    train, validation, test = image_folder(folder, 16, validation=0.2, test=0.2, augment=augment)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip
    model = tacit.variational(net, likelihood=tacit.Categorical(class_names=train.class_names))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = tacit.fit(model, train, validation, epochs=10, lr=0.05, batch_size=12)
    assert history["accuracy"][-1] > 0.9
    assert tacit.evaluate(model, test)["accuracy"] > 0.9
    prediction = tacit.predict(model, test)
    assert len(prediction.label) == len(test.names)
    assert model.preprocessing == train.preprocessing

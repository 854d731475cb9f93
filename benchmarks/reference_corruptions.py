"""Runs in an environment with imagecorruptions: IN.npy (B, H, W, 3) to OUT.npz {name-severity}."""

import sys
import warnings
from typing import Any

import numpy as np


def main(source: str, target: str) -> None:
    """Apply all 15 corruptions at all severities to the images of a file."""
    import imagecorruptions.corruptions as theirs
    from imagecorruptions import corrupt, get_corruption_names

    gaussian = theirs.gaussian

    def with_channels(*arguments: Any, multichannel: bool = False, **rest: Any) -> Any:
        # scikit-image renamed the argument.
        return gaussian(*arguments, channel_axis=-1 if multichannel else None, **rest)

    theirs.gaussian = with_channels
    images = np.load(source)
    found: dict[str, Any] = {}
    np.random.seed(0)
    for name in get_corruption_names():
        for severity in range(1, 6):
            corrupted = [corrupt(x, corruption_name=name, severity=severity) for x in images]
            found[f"{name}-{severity}"] = np.stack(corrupted)
    np.savez(target, **found)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])

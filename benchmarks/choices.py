"""The comparison behind the defaults: which layers are random, scale, rank, and draws per step.

Prints the methods for `tacit bench run` to compare, into results/bench_choices:

    tacit bench run --data fashion_mnist --parametrization sp --seeds 2 --epochs 20 \
        --train-size 10000 --test-size 5000 --corrupted-size 500 --out results/bench_choices \
        --methods temperature_scaling,mc_dropout,$(python -m benchmarks.choices)
"""

from __future__ import annotations

from functools import partial

from tacit import every_layer, first_and_last
from tacit.methods import ImplicitBiasVI


def low_rank(rank: int, scale: float, draws: int) -> ImplicitBiasVI:
    """Return the method with all layers random."""
    return ImplicitBiasVI(partial(every_layer, rank=rank, scale=scale), draws=draws)


paper = ImplicitBiasVI(first_and_last, draws=1)
paper_8_draws = ImplicitBiasVI(first_and_last, draws=8)
rank_10_half_1_draw = low_rank(10, 0.5, 1)
rank_10_half = low_rank(10, 0.5, 8)
rank_3_half = low_rank(3, 0.5, 8)
rank_10_quarter = low_rank(10, 0.25, 8)
rank_3_quarter = low_rank(3, 0.25, 8)
rank_10_full = low_rank(10, 1.0, 8)

if __name__ == "__main__":
    names = [name for name, value in list(globals().items()) if isinstance(value, ImplicitBiasVI)]
    print(",".join(f"benchmarks.choices:{name}" for name in names))

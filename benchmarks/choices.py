"""What the defaults of random weights rest on: which layers, their scale, their rank, draws.

Prints the methods that `tacit bench run` then compares, in results/bench_choices:

    tacit bench run --data fashion_mnist --parametrization sp --seeds 2 --epochs 20 \
        --train-size 20000 --corrupted-size 1000 --out results/bench_choices \
        --methods temperature_scaling,$(python -m benchmarks.choices)
"""

from __future__ import annotations

from functools import partial

from tacit import Diagonal, LowRank, every_layer, first_and_last
from tacit.methods import ImplicitBiasVI

CONVOLUTIONS, LINEAR = ("0", "3"), ("7", "9", "11")  # of LeNet-5

every = ImplicitBiasVI()
every_8_draws = ImplicitBiasVI(draws=8)
paper = ImplicitBiasVI(first_and_last)
paper_half_scale = ImplicitBiasVI({"0": LowRank(10, 0.5), "11": LowRank(20, 0.5)})
convolutions = ImplicitBiasVI(dict.fromkeys(CONVOLUTIONS, LowRank(10, 0.5)))
linear = ImplicitBiasVI(dict.fromkeys(LINEAR, LowRank(10, 0.5)))
quarter_scale = ImplicitBiasVI(partial(every_layer, scale=0.25))
full_scale_8_draws = ImplicitBiasVI(partial(every_layer, scale=1.0), draws=8)
rank_3_8_draws = ImplicitBiasVI(rank=3, draws=8)
rank_40_8_draws = ImplicitBiasVI(rank=40, draws=8)
diagonal = ImplicitBiasVI({"*": Diagonal(0.5)})

if __name__ == "__main__":
    names = [name for name, value in list(globals().items()) if isinstance(value, ImplicitBiasVI)]
    print(",".join(f"benchmarks.choices:{name}" for name in names))

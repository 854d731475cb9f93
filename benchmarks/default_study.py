r"""Methods for the study of the default against its rivals, for `tacit bench run`.

    tacit bench run --data fashion_mnist,mnist --parametrization sp --seeds 3 --epochs 40 \
        --lr 0.05 --average 0.5 --train-size 10000 --test-size 5000 --corrupted-size 500 \
        --out results/default_study --methods \
        temperature_scaling,swag,laplace_marglik,deep_ensemble,$(python -m benchmarks.default_study)

and for digits with 10 epochs, all images. All train the same number of steps and average the same
iterates; those with a temperature fit it on the same validation data.
"""

from __future__ import annotations

from functools import partial

from tacit import first_and_last, relative_noise
from tacit.methods import ImplicitBiasVI, MCDropout, Method

default = ImplicitBiasVI()
log_probs = ImplicitBiasVI(averaging="log_probs")
relative_fixed = ImplicitBiasVI(partial(relative_noise, speed=0.0))
relative_faster = ImplicitBiasVI(partial(relative_noise, speed=0.01))
low_rank = ImplicitBiasVI(rank=3)
paper = ImplicitBiasVI(first_and_last, draws=1, averaging="log_probs")
dropout_05 = MCDropout(0.05, calibrated=True)
dropout_10 = MCDropout(0.1, calibrated=True)
dropout_20 = MCDropout(0.2, calibrated=True)

if __name__ == "__main__":
    names = [name for name, value in list(globals().items()) if isinstance(value, Method)]
    print(",".join(f"benchmarks.default_study:{name}" for name in names))

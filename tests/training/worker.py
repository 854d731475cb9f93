"""A small training run in its own process. Usage: FOLDER OUT EPOCHS KIND [DELAY] [BATCH_SIZE]."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

import tacit


class Slow(torch.utils.data.Dataset):
    """A dataset with a delay per example, so that a run can be killed at different moments."""

    def __init__(self, delay):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(64, 4, generator=generator)
        self.y = (self.x[:, 0] > 0).long()
        self.delay = delay

    def __len__(self):
        return 64

    def __getitem__(self, i):
        time.sleep(self.delay)
        return self.x[i], self.y[i]


def main(folder, out, epochs, kind, delay="0", batch_size="16"):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    likelihood = tacit.Categorical()
    model = net
    if kind == "variational":
        model = tacit.variational(net, {"2": tacit.LowRank(4)}, likelihood=likelihood)
    print("begins", flush=True)  # noqa: T201 - the test waits for this line
    tacit.fit(
        model,
        Slow(float(delay)),
        epochs=int(epochs),
        lr=0.05,
        batch_size=int(batch_size),
        accelerator="cpu",
        likelihood=likelihood,
        checkpoint=None if folder == "-" else Path(folder),
    )
    torch.save(model.state_dict(), out)
    if torch.distributed.is_initialized():
        # Threads of gloo that are alive when a process exits may abort it.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

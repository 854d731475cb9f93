"""Two processes of Lightning's DDP train a module and report. Usage: FOLDER."""

import os
import sys
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.integrations.lightning import Calibrate, VariationalModule


class Own(pl.LightningModule):
    """A user's module, which knows nothing of tacit."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, _index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.param_groups(lr=0.1), momentum=0.9)


def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return tacit.variational(net, likelihood=tacit.Categorical())


def trainer(folder, **settings):
    return pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, max_epochs=2, **settings,
    )  # fmt: skip


def main(folder):
    warnings.filterwarnings("ignore", category=FutureWarning)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    module = VariationalModule(model(), lr=0.1)
    ours = trainer(folder, callbacks=[Calibrate((x, y))])
    ours.fit(module, loader, loader)
    noise = module.model.train()(x).detach()
    own = Own(model())
    trainer(folder, enable_checkpointing=False).fit(own, loader)
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    found = {
        "ours": module.state_dict(),
        "own": own.state_dict(),
        "metrics": ours.callback_metrics,
        "noise": noise,
        "rows": sum(map(len, ours.predict(module, loader))),
    }
    torch.save(found, Path(folder) / f"{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1])

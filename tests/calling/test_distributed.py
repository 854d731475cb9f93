"""Two processes under DDP: synchronised parameters, independent noise."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tacit
from tacit.training.optim import eligibility


def train(rank, port, folder, kind):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ours = kind == "tacit.SGD"
    if kind == "each":
        model = tacit.variational(net, {"0": tacit.RankOneSum(2), "2": tacit.Relative()})
    else:
        model = tacit.variational(net, rank=6, draws=1 if ours else 2)
    parallel = DistributedDataParallel(model)  # starts from the parameters of rank 0
    if ours:
        eligibility.WIDE = eligibility.SMALL = 0  # in one process it would defer updates
        optimizer = tacit.SGD(model, lr=0.05, momentum=0.9, deferred=True)
    else:
        optimizer = torch.optim.SGD(model.param_groups(lr=0.05), momentum=0.9)
    x = torch.ones(6, 4)  # the same data: only the noise differs
    outputs = []
    for _ in range(5):
        output = parallel(x)
        outputs.append(output.detach())
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
    sampled = parallel(x, samples=3)
    assert sampled.shape == (3, 6, 2)
    torch.save(
        {"state": model.state_dict(), "outputs": torch.stack(outputs)}, f"{folder}/{rank}.pt"
    )
    dist.barrier()  # a process that leaves first may abort the other
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch.optim.SGD", "tacit.SGD", "each"])
def test_two_processes_stay_synchronised_with_independent_noise(tmp_path, unused_port, kind):
    arguments = (unused_port, str(tmp_path), kind)
    try:
        mp.spawn(train, args=arguments, nprocs=2)
    except mp.ProcessExitedException as error:
        if error.signal_name != "SIGABRT":
            raise
        mp.spawn(train, args=arguments, nprocs=2)  # gloo sometimes aborts a process as it exits
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    for a, b in zip(first["outputs"], second["outputs"], strict=True):
        assert not torch.equal(a, b)

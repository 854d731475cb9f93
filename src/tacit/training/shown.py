"""Progress of training on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.training.run import Run


@contextmanager
def shown(run: Run, wanted: bool) -> Iterator[Callable[[float], None]]:
    """Yield a function to call after each step with its loss; it shows the progress of the run."""
    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield lambda loss: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=run.total_steps, completed=run.step)

        def show(loss: float) -> None:
            text = f"epoch {run.epoch + 1}/{run.settings.epochs}  loss {run.mean_loss:.4f}"
            if run.history.epochs:
                last = run.history.epochs[-1]
                numbers = (f"{k} {v:.4f}" for k, v in last.items() if k in ("nll", "accuracy"))
                text += "  " + "  ".join(numbers)
            bar.update(task, description=text, completed=run.step)

        yield show

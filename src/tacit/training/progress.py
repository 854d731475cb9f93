"""Progress of training, shown in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tacit.training.run import Run


@contextmanager
def show_progress(run: Run) -> Iterator[Callable[[float], None]]:
    """Yield a function to call after each step; in a terminal it updates a progress bar."""
    from rich.console import Console  # importing rich takes as long as the rest of training
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda loss: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=run.total_steps, completed=run.step)

        def show(loss: float) -> None:
            text = f"epoch {run.epoch + 1}/{run.settings.epochs}  loss {run.mean_loss:.4f}"
            if run.history.epochs:
                last = run.history.epochs[-1]
                metrics = (f"{k} {v:.4f}" for k, v in last.items() if k in ("nll", "accuracy"))
                text += "  " + "  ".join(metrics)
            bar.update(task, description=text, completed=run.step)

        yield show


def announce_resume(run: Run) -> None:
    """Print the step from which a run resumes."""
    from rich.console import Console

    Console(stderr=True).print(f"resuming from step {run.step} in {run.folder}")

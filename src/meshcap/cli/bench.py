"""`meshcap bench`."""

from __future__ import annotations

import typer

from meshcap.cli.bench_captions import caption, decode, runtimes
from meshcap.cli.bench_service import batch, serve
from meshcap.cli.bench_training import mechanisms, score, train, train_step

app = typer.Typer(help="Measure this machine. Example: meshcap bench decode --threads 1", no_args_is_help=True)

for command in (decode, caption, train_step, train, score, runtimes, mechanisms, serve, batch):
    app.command(command.__name__.replace("_", "-"))(command)

"""Options of training, shared by the commands that train."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, cast

import typer

from selex.config import Training
from selex.errors import InputError

MethodName = Annotated[
    str,
    typer.Option(
        metavar="frozen|selex|gcd|simgcd",
        help="`frozen`: the backbone as it is. `selex`: trained with self-expertise. `gcd`, `simgcd`: trained the way "
        "of those two papers, to compare.",
    ),
]
Epochs = Annotated[int, typer.Option(min=1, metavar="N", help="Training: passes over the images.")]
BatchSize = Annotated[int, typer.Option("--batch", min=2, metavar="N", help="Training: images of a step.")]
Rate = Annotated[float, typer.Option("--lr", metavar="X", help="Training: learning rate of the first epoch.")]
Alpha = Annotated[float, typer.Option(metavar="X", help="SelEx: how uncertain negatives are, from 0 (InfoNCE) to 1.")]
Lambda = Annotated[float, typer.Option("--lambda", metavar="X", help="Training: share of the supervised loss.")]
Temperature = Annotated[
    float,
    typer.Option(metavar="X", help="Training: of the unsupervised loss; 0.1 suits a network from scratch."),
]
Warp = Annotated[
    float, typer.Option(metavar="X", help="Training: turn and stretch views at random by up to so much, such as 0.15.")
]
Jitter = Annotated[
    float,
    typer.Option(metavar="X", help="Training: change brightness, contrast and colour of views by up to this share."),
]
Zoom = Annotated[
    float,
    typer.Option(metavar="X", help="Training: enlarge views, up to this share of their width is lost, such as 0.6."),
]
Blocks = Annotated[
    int, typer.Option(min=1, metavar="N", help="Training: so many of the backbone's last blocks or stages are trained.")
]
Bank = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="V",
        help="Training: keep V views of each image behind the frozen blocks, so that a step runs only the trained. "
        "Several times faster, on a CPU above all; 0 makes new views each time.",
    ),
]
Micro = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Training: images at a time on the device, for small memory; same result."),
]
Interval = Annotated[int, typer.Option(min=1, metavar="N", help="SelEx: new pseudo-labels every N epochs.")]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="hssk|use|sse|flip",
        help="SelEx without a part: the levels above the base, unsupervised or supervised self-expertise; or training "
        "without mirrored views. May be given several times.",
    ),
]
TrainLevels = Annotated[
    int | None, typer.Option("--train-levels", min=1, metavar="N", help="SelEx: at most so many levels in the losses.")
]
Targets = Annotated[
    str, typer.Option(metavar="labels|radii", help="SelEx: pairs are far by pseudo-labels, or by radii of clusters.")
]
Prototypes = Annotated[
    float,
    typer.Option(
        metavar="X", help="SelEx: weight of a loss that draws features to their cluster's centre, such as 0.35."
    ),
]
Published = Annotated[
    bool, typer.Option("--published", help="SelEx: follow the published code where it leaves the paper, to compare.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted training; without one there, stop with an error.")
]
Restart = Annotated[bool, typer.Option("--restart", help="Train from the beginning, whatever was done before.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard too, to RUN/tensorboard.")]

_PARTS = ("hssk", "use", "sse", "flip")


def settings(
    epochs: Epochs,
    batch: BatchSize,
    lr: Rate,
    alpha: Alpha,
    balance: Lambda,
    temperature: Temperature,
    warp: Warp,
    zoom: Zoom,
    jitter: Jitter,
    trained_blocks: Blocks,
    view_bank: Bank,
    micro_batch: Micro,
    interval: Interval,
    targets: Targets,
    prototypes: Prototypes,
    published: Published,
    without: Without = None,
    train_levels: TrainLevels = None,
) -> Training:
    """The settings of training, from its options: the one list of them."""
    for part in without or ():
        if part not in _PARTS:
            raise InputError(f"--without {part}: give one of {', '.join(_PARTS)}")
    parts: dict[str, Any] = dict.fromkeys(without or (), False)
    return Training(
        epochs=epochs,
        batch=batch,
        lr=lr,
        alpha=alpha,
        balance=balance,
        temperature=temperature,
        warp=warp,
        zoom=zoom,
        jitter=jitter,
        trained_blocks=trained_blocks,
        view_bank=view_bank,
        micro_batch=micro_batch,
        interval=interval,
        levels=train_levels,
        targets=cast(Literal["labels", "radii"], targets),
        prototypes=prototypes,
        published=published,
        **parts,
    )


def trains(base: Training) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of training, by default as in `base`; it gets what they say as `asked`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own, shared = (inspect.signature(function, eval_str=True) for function in (command, settings))
        kept = [parameter for name, parameter in own.parameters.items() if name != "asked"]
        added = [
            parameter.replace(default=getattr(base, name, parameter.default))
            for name, parameter in shared.parameters.items()
        ]
        parameters = [*kept, *added]

        @wraps(command)
        def with_options(**given: Any) -> None:
            options = {name: given.pop(name) for name in shared.parameters}
            command(**given, asked=settings(**options))

        with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return decorate

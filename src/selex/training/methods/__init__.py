"""Ways of training, one contract each: `prepare`, `forward -> {"loss", parts}`.

They know the network, the losses and the clustering; they know nothing of the loop, the run folder or the command line.
"""

from importlib.metadata import EntryPoint, entry_points

from selex.config import Config
from selex.config.groups import FROZEN
from selex.errors import InputError, unknown
from selex.io import first_line
from selex.training.methods.base import Batch, Losses, Method, Task, views
from selex.training.methods.gcd import GCD, SimGCD
from selex.training.methods.selex import SelEx

METHODS: dict[str, type[Method]] = {"gcd": GCD, "simgcd": SimGCD, "selex": SelEx}
"""Our methods by name."""
GROUP = "selex.methods"
"""The entry points under which other packages register theirs."""


def find_method(name: str) -> type[Method]:
    """A method by name: one of ours, or a class that an installed package registers."""
    if name in METHODS:
        return METHODS[name]
    others = entry_points(group=GROUP)
    if name not in others.names:
        raise unknown("method", name, [FROZEN, *METHODS, *sorted(others.names)])
    return _load(others[name])


def check_method(config: Config) -> None:
    """Refuse, before anything is done, a method that there is not, or that has no clusters to refine."""
    name, refine = config.train.method, config.cluster.refine
    if name != FROZEN and not find_method(name).clusters and refine not in ("auto", "none"):
        raise InputError(f"cluster.refine {refine}: {name} is a classifier, with no clusters to refine")


def _load(entry: EntryPoint) -> type[Method]:
    try:
        found = entry.load()
    except Exception as error:  # it is somebody else's code: anything can be wrong with it
        raise InputError(f"method {entry.name}: {entry.value} cannot be loaded ({first_line(error)})") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method {entry.name}: {entry.value} is not a subclass of selex.training.methods.Method")
    if found.__abstractmethods__:
        raise InputError(f"method {entry.name}: {entry.value} has no {' and '.join(sorted(found.__abstractmethods__))}")
    return found


__all__ = [
    "GCD",
    "METHODS",
    "Batch",
    "Losses",
    "Method",
    "SelEx",
    "SimGCD",
    "Task",
    "check_method",
    "find_method",
    "views",
]

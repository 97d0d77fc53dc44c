"""Ways of training, one contract each: `prepare`, `forward -> {"loss", parts}`, `predict`.

They know the network, the losses and the clustering; they know nothing of the loop, the run folder or the command line.
"""

from selex.methods.base import Batch, Method, Task
from selex.methods.frozen import Frozen
from selex.methods.gcd import GCD
from selex.methods.selex import SelEx
from selex.methods.simgcd import SimGCD

METHODS: dict[str, type[Method]] = {"frozen": Frozen, "gcd": GCD, "simgcd": SimGCD, "selex": SelEx}
"""Every method by name."""

__all__ = ["GCD", "METHODS", "Batch", "Frozen", "Method", "SelEx", "SimGCD", "Task"]

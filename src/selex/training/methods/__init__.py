"""Ways of training, one contract each: `prepare`, `forward -> {"loss", parts}`.

They know the network, the losses and the clustering; they know nothing of the loop, the run folder or the command line.
"""

from selex.training.methods.base import Batch, Method, Task
from selex.training.methods.gcd import GCD, SimGCD
from selex.training.methods.selex import SelEx

METHODS: dict[str, type[Method]] = {"gcd": GCD, "simgcd": SimGCD, "selex": SelEx}
"""Every method by name."""

__all__ = ["GCD", "METHODS", "Batch", "Method", "SelEx", "SimGCD", "Task"]

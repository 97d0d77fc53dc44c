"""Tensors in, scalar out: the losses of SelEx, of GCD and of SimGCD. They know nothing of images, files or the network.

- `logits`: minus distance, or cosine, of rows
- `info_nce`, `supervised_contrastive`: the two losses of GCD
- `use_targets`, `radius_targets`, `cluster_radii`: the target matrix of unsupervised self-expertise;
  `published_targets`, `nearest_prototypes`: that of the published code
- `unsupervised_self_expertise`, `supervised_self_expertise`: the two losses of SelEx; `self_expertise`: both at once
- `prefix_products`, `prefix_sizes`: inner products over leading dims, for all levels in one pass
- `self_distillation`, `teacher_temperature`, `mean_entropy`, `supervised_cross_entropy`: what SimGCD adds
"""

from selex.losses.gcd import (
    info_nce,
    logits,
    mean_entropy,
    self_distillation,
    supervised_contrastive,
    supervised_cross_entropy,
    teacher_temperature,
)
from selex.losses.selex import (
    cluster_radii,
    nearest_prototypes,
    prefix_sizes,
    published_targets,
    radius_targets,
    self_expertise,
    supervised_self_expertise,
    unsupervised_self_expertise,
    use_targets,
)
from selex.losses.similarity import prefix_products

__all__ = [
    "cluster_radii",
    "info_nce",
    "logits",
    "mean_entropy",
    "nearest_prototypes",
    "prefix_products",
    "prefix_sizes",
    "published_targets",
    "radius_targets",
    "self_distillation",
    "self_expertise",
    "supervised_contrastive",
    "supervised_cross_entropy",
    "supervised_self_expertise",
    "teacher_temperature",
    "unsupervised_self_expertise",
    "use_targets",
]

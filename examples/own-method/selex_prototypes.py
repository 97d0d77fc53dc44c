"""Your own method: images are pulled towards the centre of their cluster, as in DeepCluster, with labels."""

import torch
from torch.nn.functional import cross_entropy, normalize

from selex.losses import info_nce
from selex.training.methods import Method, views


class Prototypes(Method):
    """Clusters before each epoch; then InfoNCE between two views, and cross-entropy of each view's cluster."""

    def __init__(self, backbone, task, settings):
        super().__init__(backbone, task, settings)
        self.register_buffer("clusters_of", None)  # buffers are kept in checkpoints and shared by processes
        self.register_buffer("centers", None)

    def prepare(self, epoch, features, labels, rng):
        """Before an epoch: cluster the features of all images. Labelled ones stay in their category."""
        if epoch % self.settings.interval:
            return None
        level = self.cluster(features(), labels, rng, n_levels=1).levels[0]
        self.clusters_of = torch.as_tensor(level.labels).long()
        self.centers = normalize(torch.as_tensor(level.centers), dim=1)
        return level

    def encode(self, states):
        """What the losses need of each view: its embedding and its feature."""
        features = self.features(states)
        return self.head(features), features

    def losses(self, encoded, batch):
        """The loss of a batch, and parts of it for the log."""
        embeddings, features = encoded  # the first views of all images, then the second ones
        contrast = info_nce(*views(embeddings), self.settings.temperature, self.kind)
        cosines = self.as_clustered(features) @ self.centers.T
        near = cross_entropy(cosines / 0.1, self.clusters_of[batch.rows].repeat(2))
        loss = contrast + self.settings.prototypes * near
        return {"loss": loss, "contrast": contrast.detach(), "near": near.detach()}

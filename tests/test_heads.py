"""Heads against their formulas."""

import pytest
import torch
from torch.nn.functional import normalize

from selex.errors import InputError
from selex.losses import prefix_sizes, self_expertise
from selex.models.heads import Classifier, ProjectionHead


def plain(layers, x):
    """The MLP written out."""
    for number, layer in enumerate(layers):
        x = x @ layer.weight.T + layer.bias
        if number + 1 < len(layers):
            x = 0.5 * x * (1 + torch.erf(x / 2**0.5))
    return x


def linears(head):
    return [layer for layer in head.mlp if hasattr(layer, "weight")]


@pytest.fixture
def x():
    return torch.randn(7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_the_projection_by_its_formula(x):
    head = ProjectionHead(12, 40, 16, 8).double()
    inner = plain(linears(head), x)
    inner = inner / inner.norm(dim=1, keepdim=True)
    directions = head.directions / head.directions.norm(dim=1, keepdim=True)
    out = inner @ directions.T
    assert torch.allclose(head(x), out / out.norm(dim=1, keepdim=True), rtol=1e-10)
    assert [tuple(layer.weight.shape) for layer in linears(head)] == [(16, 12), (16, 16), (8, 16)]


def test_the_length_of_a_direction_has_no_effect(x):
    head = ProjectionHead(12, 40, 16, 8).double()
    before = head(x)
    with torch.no_grad():
        head.directions.mul_(torch.rand(40, 1).double() + 0.5)
    assert torch.allclose(head(x), before, rtol=1e-10)


def test_parameters_of_the_papers_head():
    with torch.device("meta"):
        head = ProjectionHead(768, 65_536)
    layers = (768 + 1) * 2048 + (2048 + 1) * 2048 + (2048 + 1) * 256
    assert sum(parameter.numel() for parameter in head.parameters()) == layers + 65_536 * 256


def test_the_classifier_by_its_formula(x):
    head = Classifier(12, 5, 16, 8).double()
    projection, logits = head(x)
    assert torch.allclose(projection, normalize(plain(linears(head), x), dim=1), rtol=1e-10)
    cosines = torch.nn.functional.cosine_similarity(x[:, None], head.directions[None], dim=2)
    assert torch.allclose(logits, cosines, rtol=1e-10)
    assert torch.allclose(head.prototypes.norm(dim=1), torch.ones(5).double())


def test_inner_products_of_prefixes_without_embeddings(x):
    head = ProjectionHead(12, 40, 16, 8).double()
    z = head(x)
    sizes = [40, 20, 10, 5, 2, 1, 1]
    expected = torch.stack([z[:, :size] @ z[:, :size].T for size in sizes])
    made = head.products(head.inner(x), sizes)
    assert torch.allclose(made, expected, rtol=1e-10, atol=1e-12)
    weights = torch.randn(made.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = torch.autograd.grad((weights * expected).sum(), list(head.parameters()))
    given = torch.autograd.grad((weights * made).sum(), list(head.parameters()))
    for a, b in zip(given, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("sizes", [[], [20, 10], [40, 0], [40, 41]], ids=str)
def test_sizes_that_cannot_be(x, sizes):
    head = ProjectionHead(12, 40, 16, 8).double()
    with pytest.raises(InputError, match="sizes must be from 1 to 40, the first of them 40"):
        head.products(head.inner(x), sizes)


def test_a_row_that_a_short_prefix_says_nothing_of():
    """Its squared norm there is 0, and must not come out below by rounding: its distance to itself has a gradient."""
    head = ProjectionHead(64, 64, 32, 16)
    inner = normalize(torch.randn(400, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    first = normalize(head.directions[:1].detach(), dim=1)
    inner = normalize(inner - (inner @ first.T) * first, dim=1).requires_grad_()
    sizes = prefix_sizes(64, 8)
    made = head.products(inner, sizes)
    assert (made.diagonal(dim1=1, dim2=2) >= 0).all()
    labels = torch.arange(400) % 5
    use, sse = self_expertise(made, torch.eye(400).roll(200, 0), labels, labels.repeat(8, 1), (1.0, 0.07))
    (use + sse).backward()
    assert inner.grad.isfinite().all()
    assert head.directions.grad.isfinite().all()


def test_products_of_half_precision_rows_are_whole(x):
    head = ProjectionHead(12, 40, 16, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inner = head.inner(x.float())
        made = head.products(inner, [40, 20])
    assert made.dtype == torch.float32
    assert torch.allclose(made[0].diagonal(), torch.ones(7))
    assert torch.allclose(made, head.products(inner.float(), [40, 20]))

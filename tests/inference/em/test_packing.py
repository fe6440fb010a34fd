"""Tensors as one flat tensor: sums of packed tensors are packed sums."""

from __future__ import annotations

import torch

from torch_lntm.inference.em.packing import NUM_PIECES, joined, layout_of, pack, pieces, unpack


def test_sums_of_pieces_are_exact() -> None:
    """Of 256 processes, where float32 alone keeps seven digits."""
    generator = torch.Generator().manual_seed(0)
    scales = 10.0 ** torch.arange(-9, 11, dtype=torch.float64)
    values = scales * torch.randn(256, 50, 20, generator=generator, dtype=torch.float64)
    total = torch.stack([pieces(x.flatten()) for x in values]).sum(0)
    assert total.dtype == torch.float32
    found = joined(total).view(50, 20)
    expected = values.sum(0)
    # What is below 2^-20 has the precision of float32.
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=256 * 2.0**-44)
    small = 2.0**-30 * torch.rand(100, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(joined(pieces(small)), small, rtol=2.0**-24, atol=0.0)


def test_whole_numbers_and_what_is_no_number() -> None:
    whole = torch.tensor([0.0, 1.0, -(2.0**31) - 1, 2.0**43 + 1, 2.0**60], dtype=torch.float64)
    assert torch.equal(joined(pieces(whole)), whole)
    for value in (torch.nan, torch.inf, -torch.inf):
        found = joined(pieces(torch.tensor([value, 3.0], dtype=torch.float64)))
        assert not torch.isfinite(found[0])
        assert found[1] == 3.0


def test_what_is_packed_comes_back_with_its_shapes_and_types() -> None:
    tensors = {
        "a": torch.tensor(2.5, dtype=torch.float64),
        "words": torch.rand(5, 3),
        "b": torch.rand(2, 2, dtype=torch.float64) * 1000,
        "more": torch.rand(4),
    }
    flat = pack(tensors)
    assert flat.shape == (NUM_PIECES * 5 + 19,)
    assert flat.dtype == torch.float32
    found = unpack(flat, layout_of(tensors))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], tensor, rtol=0.0, atol=2.0**-44)
    double = {name: tensor.double() for name, tensor in tensors.items()}
    flat = pack(double)
    assert flat.dtype == torch.float64
    found = unpack(3.0 * flat, layout_of(double))
    for name, tensor in double.items():
        assert torch.equal(found[name], 3.0 * tensor)

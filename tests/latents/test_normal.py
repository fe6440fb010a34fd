"""A normal prior of eta in whitened coordinates."""

from __future__ import annotations

import torch

from torch_lntm.latents import NormalSpace


def test_selected_documents_keep_their_means_and_parameters() -> None:
    tril = torch.tensor([[1.0, 0.0], [0.5, 2.0]], dtype=torch.float64)
    loc = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    rows = torch.tensor([2, 0])
    z = torch.arange(6.0, dtype=torch.float64).view(3, 2).sin()
    for anchored, num_topics in ((False, 2), (True, 3)):
        space = NormalSpace(loc, tril, anchored)
        part = space.select(rows)
        assert part.num_topics == num_topics
        assert torch.equal(part.loc, loc[rows])
        torch.testing.assert_close(part.logits(z[rows]), space.logits(z)[rows])
        torch.testing.assert_close(part.to(torch.float32).to(torch.float64).loc, loc[rows])
        assert part.to(torch.float32).num_topics == num_topics


def test_the_unit_metric_of_eta_is_the_inverse_factor() -> None:
    tril = torch.tensor([[1.0, 0.0], [0.5, 2.0]], dtype=torch.float64)
    space = NormalSpace(torch.zeros(2, dtype=torch.float64), tril)
    eye = torch.eye(2, dtype=torch.float64)[:, None, :]
    # The velocity of eta equals the momentum.
    moved = space.push(space.unit_metric().push(eye))
    torch.testing.assert_close(moved, eye)

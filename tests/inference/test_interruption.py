"""Ctrl-C while a fit copies what Ctrl-C goes back to: what is left belongs together."""

from __future__ import annotations

import pytest
import torch
from support.known import make_corpus, make_model

from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import DocumentHMC, MonteCarloEM, VariationalEM
from torch_lntm.inference.chains import chains
from torch_lntm.inference.em import loop
from torch_lntm.inference.interruption import propagate_interrupts
from torch_lntm.models import lda


def variational(model):
    settings = {"restarts": 2, "start_epochs": 1, "stepwise_epochs": 1, "max_iterations": 1}
    return VariationalEM(model, TaylorGuide(model), progress=False, **settings)


def monte_carlo(model):
    return MonteCarloEM(model, max_epochs=2, start="model", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "engine"),
    [(make_model, variational), (make_model, monte_carlo), (lambda: lda(3, 4), monte_carlo)],
)
def test_ctrl_c_during_a_copy_removes_the_record_of_the_undone_step(make, engine, monkeypatch):
    copies, at = 0, -1
    kept = {}
    clone, keep = loop.deepcopy, loop.ResumableFit.keep

    def interrupted(tensors):
        nonlocal copies
        copies += 1
        if copies == at:
            raise KeyboardInterrupt
        return clone(tensors)

    def recorded(self):
        keep(self)
        kept[len(self.state.history)] = clone(self.model.state_dict())

    monkeypatch.setattr(loop, "deepcopy", interrupted)
    monkeypatch.setattr(loop.ResumableFit, "keep", recorded)
    whole = engine(make()).fit(make_corpus())
    last, reference = copies, dict(kept)
    assert whole.stop_reason != "interrupted"
    objectives = [record["objective"] for record in whole.history]
    # The first copy is made before the fit begins; Ctrl-C then ends it without a result.
    for chosen in range(2, last + 1):
        copies, at = 0, chosen
        model = make()
        result = engine(model).fit(make_corpus())
        assert result.stop_reason == "interrupted"
        assert bool(torch.isfinite(result.means).all())
        found = [record["objective"] for record in result.history]
        if found and found.index(found[-1]) < len(found) - 1:
            # A restart that was scored: its record stands again at the end, its parameters return.
            found = found[: found.index(found[-1]) + 1]
        assert found == objectives[: len(found)]
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, reference[len(found)][name], rtol=0, atol=0)


def test_fits_of_a_comparison_propagate_ctrl_c(monkeypatch):
    model = make_model()
    count = chains.Chains._count

    def interrupted(self, *args):
        count(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(chains.Chains, "_count", interrupted)
    kernel = DocumentHMC(model, step_size=0.1)
    batch = make_corpus().batch(dtype=model.dtype)
    assert kernel.run(batch, 3, 1, progress=False).interrupted
    assert monte_carlo(make_model()).fit(make_corpus()).stop_reason == "interrupted"
    with propagate_interrupts():
        with pytest.raises(KeyboardInterrupt):
            kernel.run(batch, 3, 1, progress=False)
        with pytest.raises(KeyboardInterrupt):
            monte_carlo(make_model()).fit(make_corpus())
    assert kernel.run(batch, 3, 1, progress=False).interrupted

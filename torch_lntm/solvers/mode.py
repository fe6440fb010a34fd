"""The mode of each document's posterior, the centre of Taylor's and Laplace's posteriors."""

from __future__ import annotations

from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.latents.normal import EtaSpace
from torch_lntm.posteriors.mode import ModePosterior
from torch_lntm.solvers.ascent import Objective, maximise_mean
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.precision import in_sufficient_precision


def find_mode(
    batch: DocumentBatch, topics: Tensor, space: EtaSpace, options: SolveOptions
) -> ModePosterior:
    """A local mode of log p(w, eta) of each document, with the topic assignments summed out.

    The modes are the fixed points of *Ahmed & Xing 2007, eqs 10 and 12*. They are reached by
    ascent, because the paper's undamped iteration fails to converge on some documents.

    Arguments as for :func:`torch_lntm.solvers.taylor.taylor`.

    Returns:
        The modes. The objective is log p(w, eta) at the mode, without the prior's normalising
        constant.
    """
    ascent = maximise_mean(
        Objective(batch, topics, space, None, options.temperature),
        space.whiten(options.start),
        tolerance=options.tolerance,
        max_iterations=options.max_iterations,
    )
    return ModePosterior(
        space=space,
        mean=space.unwhiten(ascent.point.z),
        index=batch.index,
        converged=ascent.converged,
        iterations=ascent.iterations,
        objective=ascent.point.value,
    )


#: :func:`find_mode`, in float64 for the documents that need it.
mode = in_sufficient_precision(find_mode)

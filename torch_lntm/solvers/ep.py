"""Expectation propagation for the Dirichlet aspect model (Minka & Lafferty 2002, §4.2).

The likelihood of a document is a product over its words w of terms t_w(θ) = Σ_k φ_kw θ_k, each to
the power of the count n_w. EP approximates a term by s_w Π_k θ_k^β_wk. The posterior is then
Dirichlet(γ), γ = α + Σ_w n_w β_w.

A visit to a word takes a copy of its approximation out, g = γ − β_w (eq. 17), and then finds the
Dirichlet γ' with the mean and the summed variance of t_w(θ) Dirichlet(g) (eqs 23–25). The product
t_w(θ) Dirichlet(g) is a mixture of Dirichlet(g + e_k) with weights r_k = φ_kw g_k / Σ_j φ_jw g_j.
With u = g + r, eqs 23–25 reduce to

    γ' = (1 − h)·u,   h = (U + 1) B / (Q + U B),   U = Σ_k u_k,
    Q = Σ_{j≠k} u_j u_k,   B = Σ_{j≠k} r_j r_k.

The printed eq. 25 subtracts nearly equal numbers if theta is near a corner or γ is large. A
different form of the sums loses no digits: Σ_{j≠k} x_j x_k = 2 x_t X + X² − Σ_{k≠t} x_k² with X =
Σ_{k≠t} x_k, for any topic t. If x_t is the largest, at most x_t X is subtracted. Here t is the
topic with the largest γ at the start of the pass. If another topic outgrows it in that pass, the
rounding error of h is about the machine epsilon divided by the share of U outside the largest u_k.
The move

    γ' − γ = r − β_w − h·u

is computed to working precision too, so float32 is enough.

This differs from *Minka & Lafferty 2002* in five points:

1. They pass through the words in a fixed order. Frequent words come first here, so that the many
   documents of a batch run out of words one after the other.
2. Their step is 1/n_w, which takes about n_w passes for a frequent word. They remark that longer
   steps are often acceptable, and :func:`ep` says how they are kept safe.
3. They only skip a word whose γ − β_w is not positive. A document that skips one also shrinks its β
   and its steps, because it may otherwise skip the same words in every pass.
4. Eq. 25 as printed cancels. The sums above do not.
5. Eq. 20 prints γ' in place of γ. The two are equal only at convergence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import NumericalError
from torch_lntm.kernels.contraction import document_sums
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.posteriors.dirichlet import (
    DirichletPosterior,
    expected_log_theta,
    log_multivariate_beta,
)
from torch_lntm.solvers.active import ActiveSet
from torch_lntm.solvers.options import SolveOptions

#: Smallest share of the way to γ' for all copies of a word together.
LEAST_STEP = 0.5
#: Factor of the β of a document after a pass with a skipped word.
SHRINKAGE = 0.5


def ep(
    batch: DocumentBatch, topics: Tensor, concentration: Tensor, options: SolveOptions
) -> DirichletPosterior:
    """Solve q(theta) = Dirichlet(γ) by *Minka & Lafferty 2002, eqs 12–25*.

    An iteration is a pass over the distinct words of a document, in descending order of counts.
    Words of equal counts keep their stored order. The documents are visited together, with one word
    of each at a time. A word is skipped in a pass if its γ − β_w is not positive.

    The step μ of a visit is the fraction of its full move that β_w takes, which does not change the
    fixed points.

    * For counts n_w from 1 to 2 the step is 1/n_w, the paper's safest. γ then becomes γ'.
    * For counts below 1 the step is 1.
    * For larger counts 1/n_w would take n_w passes. The step is 1/2, shortened as needed to keep
      each γ_k above half of its value, but at least 1/n_w.

    γ stays positive, so the paper's second reason to skip a word does not arise.

    Each document damps its steps by a factor that is halved if γ travelled further than in the pass
    before or a word was skipped, and that recovers otherwise. After a skipped word the document's β
    are halved as well, because some documents with small α would skip the same words forever. With
    many topics and short documents the skips may go on nevertheless, and such documents do not
    converge.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)`` φ in the dtype of the counts. The visits compute in this
            dtype.
        concentration: ``(num_topics,)`` positive α.
        options: Start ``(nnz, num_topics)``: β from an earlier call with these documents, or zeros.
            A document starts from zeros if its γ would not be positive. The tolerance is the
            largest distance that γ of a converged document travels in a pass, Σ_w Σ_k |Δγ_k| / Σ_k
            γ_k without damping. The sum is over visits, so every β_w stands still too. A document
            with a skipped word has not converged. The tolerance is raised to 64 times the machine
            epsilon of ``topics`` if smaller.

    Returns:
        The posterior with its ``sites`` β in the dtype of ``topics``. Its objective is an estimate
        of log p(w) rather than a bound. If γ − β_w of a word is not positive at the end, the
        document has not converged, and the word contributes variational Bayes' term, log Σ_k φ_kw
        exp(E log θ_k) − Σ_k β_wk E log θ_k. The posterior of an empty document is the prior.

    Raises:
        NumericalError: A document's γ or evidence is not finite; names documents.

    Example:
        >>> from torch_lntm.solvers.ep import SolveOptions, ep
        >>> topics, alpha = model.topics.probs.detach(), torch.full((10,), 0.5)
        >>> options = SolveOptions(torch.zeros(batch.nnz, 10), 1e-3, max_iterations=100)
        >>> ep(batch, topics, alpha, options).theta_mean().shape
        torch.Size([5, 10])
    """
    words = topics.mT.clamp_min(probability_floor(topics.dtype)).contiguous()
    alpha = concentration.double()
    sites, gamma = _start(batch, alpha, options.start.to(topics, copy=True))
    tolerance = max(options.tolerance, 64.0 * torch.finfo(topics.dtype).eps)
    # Converged documents are dropped once they have a quarter of the held stored counts.
    sizes = batch.row_offsets.diff()
    active = ActiveSet(batch.num_docs, gamma.device, sizes=sizes, idle_share=0.25)
    damping = words.new_ones(batch.num_docs)
    travelled = torch.full_like(damping, torch.inf)

    # Because a visit needs only ratios of probabilities, that of the likeliest topic is scaled to
    # 1.
    relative = words / words.amax(-1, keepdim=True)
    schedule = Schedule(batch, sites)
    for _ in range(options.max_iterations if batch.num_docs else 0):
        # A converged document that is still held has damping 0 and stays constant.
        distance, skipped = schedule.sweep(gamma, relative, damping * active.working)
        distance /= (damping * gamma.sum(-1)).to(words)
        skipped &= active.working
        active.step(((distance <= tolerance) & ~skipped)[active.rows])
        # A bad pass halves the damping, and a good pass lets it recover.
        factor = torch.where(skipped | (distance > travelled), 0.5, 1.25)
        damping = (damping * factor).clamp(1.0 / 16.0, 1.0)
        travelled = distance
        schedule.shrink_to_prior(gamma, alpha, skipped)
        active.drop_stopped()
        if active.finished:
            break
        schedule.keep(active.rows)
    schedule.finish()

    # A new sum frees γ of the rounding errors of the passes, which may have made a γ near 0
    # negative.
    gamma = _from_sites(batch, alpha, sites)
    positive = (gamma > 0).all(-1)
    gamma = torch.maximum(gamma, torch.finfo(words.dtype).eps * alpha)
    evidence, proper = _evidence(batch, words, alpha, gamma, sites)
    failed = ~torch.isfinite(evidence)
    if bool(failed.any()):
        documents = batch.index[failed].tolist()
        raise NumericalError(
            f"expectation propagation of {len(documents)} document(s) is not finite, first at "
            f"position {documents[0]}; check the topics, counts and concentration",
            documents,
        )
    return DirichletPosterior(
        concentration=alpha,
        gamma=gamma,
        index=batch.index,
        converged=active.converged & positive & proper,
        iterations=active.iterations,
        objective=evidence,
        sites=sites,
    )


def _start(batch: DocumentBatch, alpha: Tensor, sites: Tensor) -> tuple[Tensor, Tensor]:
    """Starting β, set to 0 in place where γ would not be positive, and γ."""
    gamma = _from_sites(batch, alpha, sites)
    cold = ~(gamma > 0).all(-1, keepdim=True)
    sites.masked_fill_(cold[batch.row_index], 0.0)
    return sites, torch.where(cold, alpha, gamma)


def _from_sites(batch: DocumentBatch, alpha: Tensor, sites: Tensor) -> Tensor:
    """γ = α + Σ_w n_w β_w ``(num_docs, num_topics)`` float64 (*eq. 16*)."""
    if batch.nnz == 0:
        return alpha.repeat(batch.num_docs, 1)
    return alpha + F.embedding_bag(
        torch.arange(batch.nnz, device=sites.device),
        sites.double(),
        batch.row_offsets,
        mode="sum",
        per_sample_weights=batch.counts.double(),
        include_last_offset=True,
    )


class Workspace:
    """Views of a sweep's memory for the visits to its first ``n`` documents, made once.

    Args:
        tables: ``(4, num_docs, num_topics)`` memory.
        columns: ``(10, num_docs, 1)`` memory, zeros at first.
        top: ``(num_docs, 1)`` int64 topic t.
        n: Number of documents.

    Attributes:
        start, change: ``(n, num_topics)`` γ at the start of the pass, and its change.
        u, r: ``(n, num_topics)``, also together as ``both`` ``(2, n, num_topics)``.
        damping: ``(n, 1)`` of the documents.
        travelled: ``(n, 1)`` Σ_w Σ_k |Δγ_k|.
        intact: ``(n, 1)`` 0 if a word was skipped, else 1.
        positive: ``(n, 1)`` 0 if the current word is skipped, else 1.
        top: ``(2, n, 1)`` topic t, for u and r.
        zero: ``(2, n, 1)`` zeros.
        sums: ``(2, n, 1)`` sums of u and r without topic t, then of all u (``total``) and r.
        pairs: ``(2, n, 1)`` Q and B, also separately as ``q`` and ``b``.
    """

    def __init__(self, tables: Tensor, columns: Tensor, top: Tensor, n: int) -> None:
        self.start, self.change, self.u, self.r = tables[:, :n].unbind()
        self.both = tables[2:, :n]
        self.damping, self.travelled, self.intact, self.positive = columns[:4, :n].unbind()
        self.zero, self.sums, self.pairs = columns[4:, :n].unflatten(0, (3, 2)).unbind()
        self.total = self.sums[0]
        self.q, self.b = self.pairs.unbind()
        self.top = top[:n].expand(2, n, 1)


class WordVisit(NamedTuple):
    """Visit to a word of each of the first ``n`` documents of a sweep.

    Attributes:
        words: ``(n,)`` words.
        site: ``(n, num_topics)`` their β.
        portion: ``(n, 1)`` 1/n_w.
        step: ``(n, 1)`` share of the way to γ' for all copies, before damping and limits.
        work: Memory of γ and of intermediate results.
    """

    words: Tensor
    site: Tensor
    portion: Tensor
    step: Tensor
    work: Workspace


class Sweep:
    """Part of the words of every document: the words with steps of at most γ' − γ, or the others.

    Documents come in descending order of their number of these words, so that those with a j-th
    word are the first n. β is stored visit by visit, so a visit reads and writes slices.

    Args:
        batch: Documents.
        sites: ``(nnz, num_topics)`` starting β.
        entries: Stored counts of the sweep, document by document in the order of the visits.
        long: Whether the steps are longer than γ' − γ and need a limit.
    """

    def __init__(self, batch: DocumentBatch, sites: Tensor, entries: Tensor, long: bool) -> None:
        self.batch, self.long = batch, long
        docs = batch.row_index[entries]
        sizes = torch.bincount(docs, minlength=batch.num_docs)
        rows = sizes.argsort(descending=True, stable=True)
        # Every entry has a visit, and a document in the visit.
        visit = torch.arange(len(entries), device=rows.device) - (sizes.cumsum(0) - sizes)[docs]
        order = (visit * batch.num_docs + rows.argsort()[docs]).argsort()
        self.rows = rows[: int((sizes > 0).sum())]
        self.entries, self.visit = entries[order], visit[order]
        self.sites = sites.index_select(0, self.entries)
        self._prepare()

    def _prepare(self) -> None:
        """Make the views of all visits once, since making them takes longer than some visits."""
        counts = self.batch.counts[self.entries][:, None]
        self.tables = self.sites.new_zeros(4, len(self.rows), self.sites.shape[-1])
        self.columns = self.sites.new_zeros(10, len(self.rows), 1)
        self.top = torch.zeros_like(self.rows)[:, None]
        sizes = torch.bincount(self.visit).tolist()
        workspaces = {n: Workspace(self.tables, self.columns, self.top, n) for n in set(sizes)}
        steps = torch.maximum(counts.clamp_max(1.0), LEAST_STEP * counts)
        pieces = (self.batch.word_index[self.entries], self.sites, counts.reciprocal(), steps)
        self.visits = [
            WordVisit(word, site, portion, step, workspaces[len(word)])
            for word, site, portion, step in zip(*(x.split(sizes) for x in pieces), strict=True)
        ]

    def run(self, gamma: Tensor, words: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        """Visit each word of the sweep once; see :meth:`Schedule.sweep`."""
        start, change = self.tables[:2]
        start.copy_(gamma[self.rows])
        change.zero_()
        torch.argmax(start, -1, keepdim=True, out=self.top)
        factors, travelled, intact = self.columns[:3]
        factors.copy_(damping[self.rows, None])
        travelled.zero_()
        intact.fill_(1.0)
        for visit in self.visits:
            _visit(visit, words, self.long)
        gamma[self.rows] += change.double()
        return travelled.squeeze(-1), intact.squeeze(-1) == 0.0

    def shrink_to_prior(self, documents: Tensor) -> None:
        """Scale the β of the ``documents`` ``(num_docs,)`` bool."""
        # Multiplying all β is far faster than picking a few of many.
        factors = torch.where(documents, SHRINKAGE, 1.0).to(self.sites)
        self.sites *= factors[self.batch.row_index[self.entries], None]

    def keep(self, held: Tensor, sites: Tensor) -> None:
        """Keep the documents ``held`` ``(num_docs,)`` bool; write β of all others to ``sites``."""
        stay = held[self.batch.row_index[self.entries]]
        leave = (~stay).nonzero().squeeze(-1)
        stay = stay.nonzero().squeeze(-1)
        sites.index_copy_(0, self.entries[leave], self.sites.index_select(0, leave))
        self.sites = self.sites.index_select(0, stay)
        self.entries, self.visit = self.entries[stay], self.visit[stay]
        self.rows = self.rows[held[self.rows]]
        self._prepare()


class Schedule:
    """The β of the held documents, in the order of their visits.

    Args:
        batch: Documents.
        sites: ``(nnz, num_topics)`` starting β, overwritten by the result.
    """

    def __init__(self, batch: DocumentBatch, sites: Tensor) -> None:
        self.sites, self.num_docs = sites, batch.num_docs
        self.num_held = batch.num_docs
        order = batch.counts.argsort(descending=True, stable=True)
        order = order[batch.row_index[order].argsort(stable=True)]
        long = LEAST_STEP * batch.counts[order] > 1.0
        parts = ((order[long], True), (order[~long], False))
        self.sweeps = [Sweep(batch, sites, *part) for part in parts if len(part[0])]

    def sweep(self, gamma: Tensor, words: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        """Visit every word of the held documents once.

        Args:
            gamma: ``(num_docs, num_topics)`` float64 γ, updated in place.
            words: ``(num_words, num_topics)`` φ, with a scale of its own for each row.
            damping: ``(num_docs,)`` factors of the steps.

        Returns:
            ``(num_docs,)`` Σ_w Σ_k |Δγ_k|, and ``(num_docs,)`` bool, whether a word was skipped.
        """
        distance = torch.zeros_like(damping)
        skipped = torch.zeros_like(damping, dtype=torch.bool)
        for sweep in self.sweeps:
            travelled, skipped_here = sweep.run(gamma, words, damping)
            distance[sweep.rows] += travelled
            skipped[sweep.rows] |= skipped_here
        return distance, skipped

    def shrink_to_prior(self, gamma: Tensor, alpha: Tensor, documents: Tensor) -> None:
        """Scale the β of the ``documents`` ``(num_docs,)`` bool in place, and γ with them."""
        if not bool(documents.any()):
            return
        for sweep in self.sweeps:
            sweep.shrink_to_prior(documents)
        gamma[documents] = alpha + SHRINKAGE * (gamma[documents] - alpha)

    def keep(self, rows: Tensor) -> None:
        """Keep the documents ``rows`` only, int64 positions in the batch."""
        if len(rows) == self.num_held:
            return
        self.num_held = len(rows)
        held = torch.zeros(self.num_docs, dtype=torch.bool, device=rows.device)
        held[rows] = True
        for sweep in self.sweeps:
            sweep.keep(held, self.sites)

    def finish(self) -> None:
        """Write the β of the remaining documents."""
        for sweep in self.sweeps:
            self.sites.index_copy_(0, sweep.entries, sweep.sites)


def _visit(visit: WordVisit, words: Tensor, long: bool) -> None:
    """Visit a word of each document, in few operations, because most visits have few documents."""
    # Names are the module's: u holds g = γ − β_w and then u = g + r, and r holds φ g, then the
    # weights of the mixture, and in the end the move of γ. Every result overwrites one that is no
    # longer needed, so a visit allocates next to nothing.
    site, work = visit.site, visit.work
    u, r, positive = work.u, work.r, work.positive
    tiny = torch.finfo(words.dtype).tiny
    torch.add(work.start, work.change, out=u).sub_(site)
    # tiny is a power of 2, so a sum of equal values is exact. The sum is faster than a minimum.
    torch.clamp_max(u, tiny, out=r)
    torch.eq(r.sum(-1, True), tiny * words.shape[1], out=positive)
    work.intact.mul_(positive)

    # For a skipped word r is 0, and all later results are finite.
    torch.index_select(words, 0, visit.words, out=r).mul_(u)
    r.mul_(positive / r.sum(-1, True).clamp_min_(tiny))
    u.add_(r)
    shrink = _shrink(work, tiny)

    share = positive if long else positive.mul_(visit.step).mul_(work.damping)
    move = r.sub_(site).addcmul_(u, shrink, value=-1.0).mul_(share)
    if long:
        # γ' > 0, so a move of γ by at most γ' − γ is safe.
        gamma = torch.add(work.start, work.change, out=u)
        deepest = torch.div(move, gamma, out=u).amin(-1, keepdim=True)
        longest = torch.where(deepest < 0, -0.5 / deepest, torch.inf).clamp_min_(1.0)
        move.mul_(torch.minimum(visit.step, longest).mul_(work.damping))
    work.change.add_(move)
    site.addcmul_(move, visit.portion)
    work.travelled.add_(move.abs_().sum(-1, True))


def _shrink(work: Workspace, tiny: float) -> Tensor:
    """Factors h ``(n, 1)``, with a single operation for u and r wherever possible."""
    # X is the sum without topic t, and x_t is put back after the norm of the others is known.
    both, sums, pairs = work.both, work.sums, work.pairs
    largest = both.gather(-1, work.top)
    both.scatter_(-1, work.top, work.zero)
    torch.sum(both, -1, True, out=sums)
    norm = torch.linalg.vector_norm(both, 2, -1, True)
    both.scatter_(-1, work.top, largest)
    # 2 x_t X + X² − Σ x_k². The difference is (X − |x|)(X + |x|), which rounds less than squares.
    torch.sub(sums, norm, out=pairs)
    pairs.mul_(norm.add_(sums)).addcmul_(largest, sums, value=2.0)
    sums.add_(largest)
    # pairs becomes Q + U B and B + U B. A single topic has no variance to match: 0 / tiny.
    pairs.add_(work.total.mul_(work.b))
    return work.b.div_(work.q.clamp_min_(tiny)).clamp_(0.0, 1.0)


def _evidence(
    batch: DocumentBatch, words: Tensor, alpha: Tensor, gamma: Tensor, sites: Tensor
) -> tuple[Tensor, Tensor]:
    """Estimate of log p(w) (*eqs 19–22*), and whether every word had a positive γ − β_w.

    log 𝔅(γ) − log 𝔅(α) + Σ_w n_w [log Z_w(γ − β_w) + log 𝔅(γ − β_w) − log 𝔅(γ)]. The β are the
    stored ones. Eq. 20 as printed has γ' in place of γ, which is equal only at convergence.

    Returns:
        ``(num_docs,)`` float64 nats and ``(num_docs,)`` bool.
    """
    normaliser = log_multivariate_beta(gamma)
    terms = torch.empty_like(batch.counts, dtype=torch.float64)
    proper = torch.ones_like(normaliser, dtype=torch.bool)
    # Each table of the evidence has about 2**20 numbers.
    rows_at_once = max(1, 2**20 // len(alpha))
    for entries in torch.arange(batch.nnz, device=gamma.device).split(rows_at_once):
        docs, site = batch.row_index[entries], sites[entries].double()
        word, cavity = words[batch.word_index[entries]].double(), gamma[docs] - site
        mean = (word * cavity).sum(-1) / cavity.sum(-1)
        terms[entries] = mean.log() + log_multivariate_beta(cavity) - normaliser[docs]
        skipped = (~(cavity > 0).all(-1)).nonzero().squeeze(-1)
        expected = expected_log_theta(gamma[docs[skipped]])
        jensen = torch.logsumexp(word[skipped].log() + expected, -1)
        terms[entries[skipped]] = jensen - (site[skipped] * expected).sum(-1)
        proper[docs[skipped]] = False
    total = document_sums(batch.counts.double() * terms, batch)
    return total + normaliser - log_multivariate_beta(alpha), proper

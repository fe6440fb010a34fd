"""Compiled kernels of a CPU: whole visits of chains, expected counts, and keyed noise.

They are written in Numba, which compiles them for this machine at their first use and keeps the
result on disk. :mod:`torch_lntm.kernels.compiled` calls them with PyTorch's tensors.

**Memory.** A visit evaluates the gradient of a document dozens of times. Each evaluation reads the
topics' probabilities of the document's words twice, which is nearly all of the work:

    s_v = φ_v·θ        g = Σ_v (c_v / s_v) φ_v

The kernels therefore take one block of up to 8 documents after another, and copy their words' rows
of the topics side by side: a few hundred kB, which stay in the cache. They make all transitions of
the block before the next. The products of a block with the map from z to the logits are products of
small matrices.

**Vectors.** Rows are padded to multiples of 8 numbers, and the loops that take most of the time are
written with vectors of 8 numbers (:mod:`torch_lntm.kernels.numba_ops.vectors`).

**Bits.** A document's numbers depend on nothing but the document and its keys, and sums over
documents run in a fixed order. Results therefore have the same bits for every division of the
documents over threads.
"""

from torch_lntm.kernels.numba_ops.blocks import BLOCK_BYTES as BLOCK_BYTES
from torch_lntm.kernels.numba_ops.blocks import Block as Block
from torch_lntm.kernels.numba_ops.blocks import Documents as Documents
from torch_lntm.kernels.numba_ops.blocks import divide as divide
from torch_lntm.kernels.numba_ops.blocks import new_block as new_block
from torch_lntm.kernels.numba_ops.blocks import padded as padded
from torch_lntm.kernels.numba_ops.counts import draw_topics as draw_topics
from torch_lntm.kernels.numba_ops.counts import expected_counts as expected_counts
from torch_lntm.kernels.numba_ops.counts import word_counts as word_counts
from torch_lntm.kernels.numba_ops.noise import mixed as mixed
from torch_lntm.kernels.numba_ops.noise import normal as normal
from torch_lntm.kernels.numba_ops.noise import uniform as uniform
from torch_lntm.kernels.numba_ops.starts import Running as Running
from torch_lntm.kernels.numba_ops.starts import Step as Step
from torch_lntm.kernels.numba_ops.starts import new_pad as new_pad
from torch_lntm.kernels.numba_ops.starts import pair_entropies as pair_entropies
from torch_lntm.kernels.numba_ops.starts import pair_overlaps as pair_overlaps
from torch_lntm.kernels.numba_ops.starts import start_documents as start_documents
from torch_lntm.kernels.numba_ops.starts import start_words as start_words
from torch_lntm.kernels.numba_ops.vectors import WIDTH as WIDTH
from torch_lntm.kernels.numba_ops.visits import Adaptation as Adaptation
from torch_lntm.kernels.numba_ops.visits import Counts as Counts
from torch_lntm.kernels.numba_ops.visits import Map as Map
from torch_lntm.kernels.numba_ops.visits import Outcome as Outcome
from torch_lntm.kernels.numba_ops.visits import Randomness as Randomness
from torch_lntm.kernels.numba_ops.visits import Settings as Settings
from torch_lntm.kernels.numba_ops.visits import State as State
from torch_lntm.kernels.numba_ops.visits import visit as visit

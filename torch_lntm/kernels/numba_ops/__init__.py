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

from torch_lntm.kernels.numba_ops.blocks import *
from torch_lntm.kernels.numba_ops.counts import *
from torch_lntm.kernels.numba_ops.noise import *
from torch_lntm.kernels.numba_ops.starts import *
from torch_lntm.kernels.numba_ops.vectors import WIDTH as WIDTH
from torch_lntm.kernels.numba_ops.visits import *

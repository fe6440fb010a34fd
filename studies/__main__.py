"""``python -m studies`` lists the studies; ``python -m studies NAME`` runs one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from studies.measure import Study, measure
from studies.options import read
from torch_lntm.errors import LNTMError

#: The studies, by the folder and the module that they are in.
STUDIES = {
    "papers": {
        "ahmed_xing_simulation": "How well posteriors recover theta (Ahmed & Xing 2007)",
        "ahmed_xing_learning": "Parameters learned by each posterior (the same)",
        "ahmed_xing_fig5": "Learned densities of theta on the simplex (the same)",
        "ahmed_xing_fig6_9": "Topics, proportions and the topic graph (the same)",
        "ahmed_xing_fig7_8": "Perplexity and iterations on papers of NIPS (the same)",
        "ahmed_xing_table1": "Classifying abstracts by their topics (the same)",
        "khan_bouchard": "What a full covariance buys (Khan & Bouchard 2009)",
        "factor_simulation": "Factor, correlated and Dirichlet models (Putthividhya et al. 2009)",
        "putthividhya_fig2": "Sources of correlation that can be read (the same)",
        "putthividhya_fig4": "Likelihood by topics on real texts (the same)",
        "putthividhya_fig5": "Retrieval of newsgroup messages (the same)",
        "putthividhya_table1": "Training times of LDA, IFTM and CTM (the same)",
        "minka_lafferty_two_word": "Which likelihood EM climbs (Minka & Lafferty 2002)",
        "minka_lafferty_five_word": "Aspects of documents that have none (the same)",
        "minka_lafferty_two_class": "Errors of classification (the same)",
        "minka_lafferty_text": "Perplexity of texts under VB and EP (the same)",
        "zhusuan_nips": "Monte-Carlo EM and AIS on papers of NIPS (the ZhuSuan tutorial)",
    },
    "benchmarks": {
        "completion": "Held-out words, seconds and memory, beside other programs",
        "quality": "Held-out words beside other programs, theta integrated out exactly",
        "own_words": "Held-out words with and without the document's own, beside other programs",
        "scale": "A fit of 100,000 documents",
        "large": "Two million documents in a folder that is mapped into memory",
        "kernel": "The sparse operation beside its naive form and its floor",
        "defaults": "The defaults beside other starts, schedules and priors",
        "aspect": "E-steps of LDA beside scikit-learn's",
        "accuracy": "Every posterior beside long chains",
        "sampling": "Effective samples per second beside Pyro's HMC and NUTS",
        "structural": "Structural topic models beside topica's STM",
        "coverage": "Whether intervals of effects hold the truth, on simulated corpora",
        "launches": "Kernels, waits and bytes of a fit on a pretend GPU",
        "versus": "CPU time beside another checkout of this repository",
    },
}


def load(name: str) -> Study[Any, Any]:
    """The study of a name.

    Raises:
        KeyError: There is none.
    """
    room = next((room for room, names in STUDIES.items() if name in names), None)
    if room is None:
        raise KeyError(name)
    study = import_module(f"studies.{room}.{name}").STUDY
    assert isinstance(study, Study)
    return study


def main(argv: Sequence[str] | None = None) -> int:
    """List the studies or run one; prints its tables.

    Args:
        argv: The arguments; by default those of the process.

    Returns:
        The exit code: 0 done, 1 an error that was reported, 130 after Ctrl-C.

    Raises:
        SystemExit: With 2 for wrong options, with 0 after printing help.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_listing())
        return 0
    name, *rest = arguments
    name = name.replace("-", "_")
    try:
        study = load(name)
    except KeyError:
        print(f"error: no study {name!r}\n\n{_listing()}", file=sys.stderr)
        return 2
    try:
        options = read(name, study, rest)
        if options.data is not None:
            # The processes that a study starts see it too.
            os.environ["LNTM_DATA"] = options.data
        result = measure(name, study, options.settings, options.out)
    except (LNTMError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the next cell", file=sys.stderr)
        return 130
    print(study.table(result))
    print(f"\nwritten to {options.out}")
    return 0


def _listing() -> str:
    lines = ["python -m studies NAME [--option VALUE ...]    (NAME --help lists the options)"]
    for room, names in STUDIES.items():
        lines += ["", f"{room}:", *(f"  {name:26} {line}" for name, line in names.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

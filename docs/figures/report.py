"""Draws ``report.png``, the first screen of a report, by the browser chromium.

python docs/figures/report.py

It needs the corpus *bbc* in ``../shared/data`` or the folder of the variable LNTM_DATA.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image

import torch_lntm as lntm

FIGURE = Path(__file__).with_suffix(".png")
DATA = Path(os.environ.get("LNTM_DATA", FIGURE.parents[3] / "shared" / "data"))


def main() -> None:
    """Fit the news articles, write the report, and photograph its first screen."""
    torch.set_num_threads(1)
    articles = lntm.read_corpus(DATA / "bbc.npz")
    run = lntm.fit(articles, 20, progress=False)
    title = f"Topics of {len(articles):,} BBC articles"
    with TemporaryDirectory() as folder:
        page, profile = Path(folder, "report.html"), Path(folder, "profile")
        run.report(page, title=title, progress=False)
        options = "--headless --no-sandbox --disable-gpu --window-size=1056,920 --hide-scrollbars"
        places = [f"--user-data-dir={profile}", f"--screenshot={FIGURE}", page.as_uri()]
        subprocess.run(["chromium", *options.split(), *places], check=True, capture_output=True)
    Image.open(FIGURE).convert("RGB").quantize(128).save(FIGURE, optimize=True)


if __name__ == "__main__":
    main()

"""What does a measurement of the environment cost, and which differences really change numbers here?

    python bench/fingerprint.py

First the time of ``measure()`` in a process that has imported nothing, without torch, and what of it
are the installed packages. Then the evidence behind the word "measured" in docs/fingerprint.md: the
same products, sums and functions in processes of their own, of which one variable differs. The bits
of each result are compared with those of the process where nothing was changed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping

from bench.instruments.report import Report, arguments

TIMES, QUICK_TIMES = 9, 3
MOST_MS = 100.0

_TIME = """
import time
from tenure_protocol.fingerprint import measure
from tenure_protocol.fingerprint.packages import installed
a = time.perf_counter(); measure(use_torch=False); b = time.perf_counter()
versions = installed()[0]; c = time.perf_counter()
print(1e3 * (b - a), 1e3 * (c - b), len(versions))
"""
_NUMBERS = """
import hashlib, json
import numpy as np, torch
def bits(x):
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()
rng = np.random.default_rng(0)
a, b = rng.standard_normal((257, 3011)), rng.standard_normal((3011, 129))
ta, tb = torch.from_numpy(a).float(), torch.from_numpy(b).float()
torch.manual_seed(0)
net = torch.nn.LSTM(32, 64)
net(torch.randn(40, 16, 32))[0].square().mean().backward()
print(json.dumps({
    "numpy product": bits(a @ b), "numpy exp": bits(np.exp(a)), "torch product": bits((ta @ tb).numpy()),
    "torch exp": bits(ta.exp().numpy()), "torch tanh": bits(ta.tanh().numpy()),
    "torch sum": bits((ta * ta).sum().reshape(1).numpy()),
    "LSTM gradient": bits(next(net.parameters()).grad.numpy()),
}))
"""
#: By field of the fingerprint: one change that stands for it on this machine.
CHANGES: dict[str, dict[str, str]] = {
    "numeric_variables (OPENBLAS_CORETYPE)": {"OPENBLAS_CORETYPE": "Haswell"},
    "instruction_sets, blas, numeric_variables (MKL without AVX-512)": {
        "MKL_ENABLE_INSTRUCTIONS": "AVX2"
    },
    "numeric_variables (ATEN_CPU_CAPABILITY)": {"ATEN_CPU_CAPABILITY": "avx2"},
    "determinism.threads": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
    "determinism.blas_threads": {"OPENBLAS_NUM_THREADS": "2"},
    "determinism.pythonhashseed": {"PYTHONHASHSEED": "1"},
}
_ALONE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


def run(program: str, variables: Mapping[str, str]) -> str:
    """What a program prints in a process of its own."""
    path = os.pathsep.join(p for p in sys.path if p)
    environ = {**os.environ, **_ALONE, "PYTHONPATH": path, **variables}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("fingerprint", options)
    rows = [run(_TIME, {}).split() for _ in range(QUICK_TIMES if report.quick else TIMES)]
    whole_ms, packages_ms = (statistics.median(float(row[n]) for row in rows) for n in (0, 1))
    report.line(
        "measure() in a fresh process, without torch",
        f"median {whole_ms:.0f} ms, {packages_ms:.0f} ms of it for {rows[0][2]} packages",
        f"at most {MOST_MS:g} ms",
        median_ms=whole_ms, packages_ms=packages_ms, packages=int(rows[0][2]),
    )  # fmt: skip
    before = json.loads(run(_NUMBERS, {}))
    assert before == json.loads(run(_NUMBERS, {})), "not even equal settings give equal bits here"
    for field, variables in CHANGES.items():
        after = json.loads(run(_NUMBERS, variables))
        other = [name for name in before if before[name] != after[name]]
        words = f"other bits in: {', '.join(other)}" if other else "the same bits in all"
        report.line(field, words, results=len(before), changed=other)
    report.end()


if __name__ == "__main__":
    main()

"""The most FLOPs per second a card can do in one number format: its datasheet's, or measured.

Dense peaks: a number that assumes 2:4 sparsity is halved here. For each format it is the fastest
unit that computes in just that format (the tensor or matrix cores where they do, FP64 and FP32
among them), with sums kept in FP32 for the 8 and 16 bit formats of floating point, which is how
PyTorch trains. So a peak bounds what a job can reach, and no format ever stands for another.

A name that leaves the variant open means the fastest one of that name. Standard library only at
import; torch is imported where a card is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.work import check_dtype

if TYPE_CHECKING:
    import torch

#: Words that stand in some names of a card and not in others of the same card.
_SILENT = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "generation"})


@dataclass(frozen=True)
class Peak:
    """What a card can do at most in one number format."""

    flops_per_s: float  # integer formats: operations per second
    source: str
    measured: bool


@dataclass(frozen=True)
class Card:
    """A card's row: its names, where its numbers are from, and the numbers."""

    names: tuple[str, ...]  # as drivers, platforms and people write it
    source: str
    tflops: Mapping[str, float]  # dense, 1e12 per second, by number format


def words(name: str) -> tuple[str, ...]:
    """A card's name as its words, sorted, without makers and series.

    >>> words("NVIDIA A100-SXM4-80GB") == words("a100-80gb-sxm4")
    True
    >>> words("GeForce RTX 4090"), words("rtx4090")
    (('4090', 'rtx'), ('4090', 'rtx'))
    """
    text = re.sub(r"\brtx(?=[a\d])", "rtx ", name.casefold())
    return tuple(sorted(set(re.split(r"[\s_/-]+", text.strip())) - _SILENT - {""}))


def peak(card: str, dtype: str) -> Peak | None:
    """The datasheet's peak of a card in one format; ``None`` for a card that is not in the table.

    Raises :class:`ValueError` where ``dtype`` is no format's name, or none the card has a peak for.

    >>> peak("NVIDIA H100 80GB HBM3", "bf16").flops_per_s
    989500000000000.0
    >>> peak("t4", "fp16").flops_per_s / peak("t4", "fp32").flops_per_s > 8
    True
    >>> peak("a card of tomorrow", "bf16") is None
    True
    """
    check_dtype(dtype)
    row = _BY_WORDS.get(words(card))
    if row is None:
        return None
    if dtype not in row.tflops:
        raise ValueError(
            f"{card} has no datasheet peak in {dtype}; it has one in {', '.join(row.tflops)}"
        )
    return Peak(row.tflops[dtype] * 1e12, row.source, measured=False)


@lru_cache(maxsize=1024)  # a round asks for each job and rung; workers may tell any name of a card
def known_peak(card: str, dtype: str) -> Peak | None:
    """The same, and ``None`` too for a known card that has no peak in a dtype.

    >>> known_peak("Tesla T4", "bf16") is None, known_peak("cpu", "fp32") is None
    (True, True)
    """
    try:
        return peak(card, dtype)
    except ValueError:
        return None


def dtypes_of(card: str) -> tuple[str, ...]:
    """The formats a card has a datasheet peak in; none for a card that is not in the table.

    >>> dtypes_of("Tesla P100-PCIE-16GB")
    ('fp64', 'fp32', 'fp16')
    """
    row = _BY_WORDS.get(words(card))
    return () if row is None else tuple(row.tflops)


# ---------------------------------------------------------------------------------- the table


def _tflops(**dense: float) -> Mapping[str, float]:
    return MappingProxyType(dense)


def _of_sparse(sparse: Mapping[str, float], **dense: float) -> Mapping[str, float]:
    """Numbers of a datasheet that assume sparsity, halved; ``dense`` are those that do not."""
    return MappingProxyType(dense | {name: value / 2 for name, value in sparse.items()})


_AMPERE_RATIO = (
    "; bf16 as fp16 and tf32 half of it, by the NVIDIA Ampere GA102 GPU architecture whitepaper"
)
_OF_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_OF_ADA = "NVIDIA Ada GPU architecture whitepaper"
_OF_BLACKWELL_RTX = "NVIDIA RTX Blackwell GPU architecture whitepaper"
_OF_H100 = "NVIDIA H100 Tensor Core GPU datasheet, with sparsity, halved"
_OF_H200 = "NVIDIA H200 Tensor Core GPU datasheet, with sparsity, halved"
_OF_V100 = "NVIDIA V100 Tensor Core GPU datasheet"
_OF_P100 = "NVIDIA Tesla P100 GPU accelerator datasheet"
_PER_DIE = ", half of it: each of its two dies is a device of its own to the driver"

_HOPPER_SXM = _of_sparse(
    {"tf32": 989, "bf16": 1979, "fp16": 1979, "fp8": 3958, "int8": 3958}, fp64=67, fp32=67
)
_HOPPER_NVL = _of_sparse(
    {"tf32": 835, "bf16": 1671, "fp16": 1671, "fp8": 3341, "int8": 3341}, fp64=60, fp32=60
)
_CDNA3 = _tflops(
    fp64=163.4, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9, int8=2614.9
)

# Not wrapped, so that a number is found and compared.
# fmt: off
TABLE: tuple[Card, ...] = (
    # -------------------------------------------------------------------------- data centre
    Card(
        ("P100-SXM2", "Tesla P100-SXM2-16GB", "P100"), _OF_P100,
        _tflops(fp64=5.3, fp32=10.6, fp16=21.2),
    ),
    Card(
        ("P100-PCIE", "Tesla P100-PCIE-16GB", "Tesla P100-PCIE-12GB"), _OF_P100,
        _tflops(fp64=4.7, fp32=9.3, fp16=18.7),
    ),
    Card(
        ("V100-SXM2", "Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", "V100", "V100-16GB", "V100-32GB"), _OF_V100,
        _tflops(fp64=7.8, fp32=15.7, fp16=125),
    ),
    Card(
        ("V100-PCIE", "Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), _OF_V100,
        _tflops(fp64=7, fp32=14, fp16=112),
    ),
    Card(
        ("V100S", "V100S-PCIE", "Tesla V100S-PCIE-32GB"), _OF_V100,
        _tflops(fp64=8.2, fp32=16.4, fp16=130),
    ),
    Card(
        ("T4", "Tesla T4", "NVIDIA T4", "T4-16GB"), "NVIDIA T4 Tensor Core GPU datasheet",
        _tflops(fp32=8.1, fp16=65, int8=130),
    ),
    Card(
        (
            "A100", "A100-40GB", "A100-80GB", "A100-SXM", "A100-SXM4", "A100-PCIE",
            "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-40GB", "NVIDIA A100-SXM-80GB",
            "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe",
        ),
        "NVIDIA A100 Tensor Core GPU datasheet",
        _tflops(fp64=19.5, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
    ),
    Card(
        ("A30", "NVIDIA A30", "A30-24GB"), "NVIDIA A30 Tensor Core GPU datasheet",
        _tflops(fp64=10.3, fp32=10.3, tf32=82, bf16=165, fp16=165, int8=330),
    ),
    Card(
        ("A10", "NVIDIA A10", "A10-24GB"), "NVIDIA A10 Tensor Core GPU datasheet",
        _tflops(fp32=31.2, tf32=62.5, bf16=125, fp16=125, int8=250),
    ),
    Card(
        ("A10G", "NVIDIA A10G", "A10G-24GB"), "NVIDIA A10G Tensor Core GPU datasheet",
        _tflops(fp32=35, tf32=35, bf16=70, fp16=70, int8=140),
    ),
    Card(
        ("A40", "NVIDIA A40", "A40-48GB"), "NVIDIA A40 GPU datasheet",
        _tflops(fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7, int8=299.3),
    ),
    Card(
        ("L4", "NVIDIA L4", "L4-24GB"), "NVIDIA L4 Tensor Core GPU datasheet, with sparsity, halved",
        _of_sparse({"tf32": 120, "bf16": 242, "fp16": 242, "fp8": 485, "int8": 485}, fp32=30.3),
    ),
    Card(
        ("L40", "NVIDIA L40", "L40-48GB"), "NVIDIA L40 GPU datasheet",
        _tflops(fp32=90.5, tf32=90.5, bf16=181.05, fp16=181.05, fp8=362, int8=362),
    ),
    Card(
        ("L40S", "NVIDIA L40S", "L40S-48GB"), "NVIDIA L40S GPU datasheet",
        _tflops(fp32=91.6, tf32=183, bf16=362.05, fp16=362.05, fp8=733, int8=733),
    ),
    Card(
        ("H100", "H100-80GB", "H100-SXM", "H100-SXM5", "H100-SXM5-80GB", "H100-SXM-80GB", "NVIDIA H100 80GB HBM3"), _OF_H100,
        _HOPPER_SXM,
    ),
    Card(
        ("H100-PCIE", "NVIDIA H100 PCIe", "H100-PCIE-80GB", "NVIDIA H100 80GB HBM2e"), _OF_H100,
        _of_sparse({"tf32": 756, "bf16": 1513, "fp16": 1513, "fp8": 3026, "int8": 3026}, fp64=51, fp32=51),
    ),
    Card(("H100-NVL", "NVIDIA H100 NVL", "H100-NVL-94GB"), _OF_H100, _HOPPER_NVL),
    Card(("GH200", "NVIDIA GH200 480GB", "GH200-96GB"), "NVIDIA GH200 Grace Hopper Superchip datasheet, with sparsity, halved", _HOPPER_SXM),
    Card(("H200", "NVIDIA H200", "H200-SXM", "H200-141GB"), _OF_H200, _HOPPER_SXM),
    Card(("H200-NVL", "NVIDIA H200 NVL"), _OF_H200, _HOPPER_NVL),
    Card(
        ("B200", "NVIDIA B200", "B200-SXM", "B200-180GB", "B200-192GB"), "NVIDIA HGX B200 datasheet, one GPU of it, with sparsity, halved",
        _of_sparse({"tf32": 2200, "bf16": 4500, "fp16": 4500, "fp8": 9000, "int8": 9000}, fp64=37, fp32=75),
    ),
    # -------------------------------------------------------------------------- workstations
    Card(
        ("RTX A4000", "NVIDIA RTX A4000", "A4000"), "NVIDIA RTX A4000 datasheet, tensor with sparsity, halved" + _AMPERE_RATIO,
        _tflops(fp32=19.2, tf32=38.35, bf16=76.7, fp16=76.7),
    ),
    Card(
        ("RTX A5000", "NVIDIA RTX A5000", "A5000"), "NVIDIA RTX A5000 datasheet, tensor with sparsity, halved" + _AMPERE_RATIO,
        _tflops(fp32=27.8, tf32=55.55, bf16=111.1, fp16=111.1),
    ),
    Card(
        ("RTX A6000", "NVIDIA RTX A6000", "A6000"), _OF_GA102,
        _tflops(fp32=38.7, tf32=77.4, bf16=154.8, fp16=154.8, int8=309.7),
    ),
    Card(
        ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation", "RTX 6000Ada"), _OF_ADA,
        _tflops(fp32=91.1, tf32=182.1, bf16=364.2, fp16=364.2, fp8=728.5, int8=728.5),
    ),
    # -------------------------------------------------------------------------------- GeForce
    Card(
        ("RTX 3090", "NVIDIA GeForce RTX 3090", "3090"), _OF_GA102,
        _tflops(fp32=35.6, tf32=35.6, bf16=71, fp16=71, int8=284),
    ),
    Card(
        ("RTX 4080", "NVIDIA GeForce RTX 4080", "4080"), _OF_ADA,
        _tflops(fp32=48.7, tf32=48.7, bf16=97.5, fp16=97.5, fp8=194.9, int8=389.9),
    ),
    Card(
        ("RTX 4090", "NVIDIA GeForce RTX 4090", "4090"), _OF_ADA,
        _tflops(fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3, int8=660.6),
    ),
    Card(
        ("RTX 5080", "NVIDIA GeForce RTX 5080", "5080"), _OF_BLACKWELL_RTX,
        _tflops(fp32=56.3, tf32=56.3, bf16=112.6, fp16=112.6, fp8=225.1, int8=450.2),
    ),
    Card(
        ("RTX 5090", "NVIDIA GeForce RTX 5090", "5090"), _OF_BLACKWELL_RTX,
        _tflops(fp32=104.8, tf32=104.8, bf16=209.5, fp16=209.5, fp8=419, int8=838),
    ),
    # ------------------------------------------------------------------------------------ AMD
    Card(
        ("MI250X", "AMD Instinct MI250X"), "AMD Instinct MI250X accelerator data sheet" + _PER_DIE,
        _tflops(fp64=47.85, fp32=47.85, bf16=191.5, fp16=191.5, int8=191.5),
    ),
    Card(
        ("MI300X", "AMD Instinct MI300X", "AMD Instinct MI300X OAM"), "AMD Instinct MI300X accelerator data sheet",
        _CDNA3,
    ),
)
# fmt: on

_BY_WORDS: Mapping[tuple[str, ...], Card] = {
    words(name): card for card in TABLE for name in card.names
}


# ------------------------------------------------------------------------------------ measured


#: How many rows and columns: large enough that the multiplication, not its start, takes the time.
_SIZE = {"cpu": 1024, "cuda": 8192}
_BLOCKS = 5  # the best of them counts: other work on the machine only ever makes one slower
_BLOCK_S = 0.1
_MOST_CALLS = 4096


def measure(dtype: str, device: str = "cpu", clock: Clock = SYSTEM) -> Peak:
    """The peak of this machine's processor or card in one format, by a short matrix product.

    For a card that is not in the table, and for the CPU, with as many threads as torch has now. The
    best of five blocks of at least 0.1 s. It lies below the true peak, so a speed over it comes out
    higher than one over a datasheet's.

    Raises :class:`ValueError` where the format or the device cannot be measured here.
    """
    check_dtype(dtype)
    try:
        import torch
    except ImportError as error:
        raise ValueError("a peak is measured with PyTorch; pip install torch") from error
    place = _place(device)
    _check_measurable(dtype, place)
    size = _SIZE.get(place.type, _SIZE["cpu"])
    with torch.no_grad(), _format_alone(dtype):
        per_s = _best(_Product(dtype, place, size), clock)
    threads = f", {torch.get_num_threads()} threads" if place.type == "cpu" else ""
    source = (
        f"measured: the best of {_BLOCKS} blocks of products of two {size} x {size} matrices in "
        f"{dtype} on {device}{threads}, torch {torch.__version__}"
    )
    return Peak(2.0 * size**3 * per_s, source, measured=True)


def _place(device: str) -> torch.device:
    import torch

    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"{device!r} is no device; write cpu, cuda or cuda:0") from error
    if place.type not in _SIZE:
        raise ValueError(f"no peak can be measured on {device!r}; write cpu, cuda or cuda:0")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"torch sees {torch.cuda.device_count()} cards here, so {device!r} cannot be measured; "
            f"name another one, or cpu"
        )
    return place


def _check_measurable(dtype: str, place: torch.device) -> None:
    """TF32 and FP8 run elsewhere too, but slowly, by way of another format."""
    import torch

    needed = {"tf32": (8, 0), "fp8": (8, 9)}.get(dtype)
    if needed is None:
        return
    if place.type != "cuda" or torch.version.hip is not None:
        raise ValueError(
            f"{dtype} cannot be measured on {place}: it needs an NVIDIA card of compute capability "
            f"{needed[0]}.{needed[1]}; name another format"
        )
    found = torch.cuda.get_device_capability(place)
    if found < needed:
        raise ValueError(
            f"{place} has compute capability {found[0]}.{found[1]} and no {dtype}, which needs "
            f"{needed[0]}.{needed[1]}; name another format"
        )


@contextmanager
def _format_alone(dtype: str) -> Iterator[None]:
    """FP32 is FP32 while it is measured, and TF32 is TF32, whatever the process has allowed.

    Each library's own switch, where torch has them: asking for the common one is an error in a
    process that has set them apart (PyTorch notes, 'CUDA semantics').
    """
    import torch

    wanted = "tf32" if dtype == "tf32" else "ieee"
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # before torch 2.9
        common = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(common)
        return
    card, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = card.fp32_precision, cpu.fp32_precision
    card.fp32_precision, cpu.fp32_precision = wanted, "ieee"
    try:
        yield
    finally:
        card.fp32_precision, cpu.fp32_precision = before


class _Product:
    """Multiplies two square matrices again and again."""

    def __init__(self, dtype: str, place: torch.device, size: int) -> None:
        import torch

        kinds = {
            "fp64": torch.float64,
            "fp32": torch.float32,
            "tf32": torch.float32,
            "bf16": torch.bfloat16,
            "fp16": torch.float16,
            "fp8": torch.float8_e4m3fn,
            "int8": torch.int8,
        }
        self._dtype, self._place = dtype, place
        self._left = torch.ones(size, size, device=place).to(kinds[dtype])
        self._right = self._left.t().contiguous().t()  # by columns: the only way FP8 is multiplied
        self._one = torch.ones((), device=place)

    def run(self, calls: int) -> None:
        """Multiply ``calls`` times, and wait for the card.

        The two private functions are the only ones of PyTorch that multiply FP8 and INT8 as such.
        """
        import torch

        for _ in range(calls):
            if self._dtype == "fp8":
                torch._scaled_mm(
                    self._left, self._right, self._one, self._one, out_dtype=torch.bfloat16
                )
            elif self._dtype == "int8":
                torch._int_mm(self._left, self._right)
            else:
                torch.mm(self._left, self._right)
        if self._place.type == "cuda":
            torch.cuda.synchronize(self._place)


def _best(product: _Product, clock: Clock) -> float:
    """Products per second in the fastest block."""
    product.run(2)  # the first one loads libraries and chooses a kernel
    calls, took_s = 1, _timed(product, 1, clock)
    while took_s < _BLOCK_S and calls < _MOST_CALLS:
        calls *= 2
        took_s = _timed(product, calls, clock)
    shortest_s = min([took_s, *(_timed(product, calls, clock) for _ in range(_BLOCKS - 1))])
    if shortest_s <= 0:
        raise ValueError(
            f"{calls} products took no time by the clock, so no peak was measured; "
            f"measure with a clock that runs"
        )
    return calls / shortest_s


def _timed(product: _Product, calls: int, clock: Clock) -> float:
    start_s = clock.monotonic_s()
    product.run(calls)
    return clock.monotonic_s() - start_s

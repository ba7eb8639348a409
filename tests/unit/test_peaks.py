"""Datasheet peaks: every name finds its card, no number contradicts the chip, formats never mix."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure_protocol import peaks
from tenure_protocol.peaks import TABLE, Card, dtypes_of, measure, peak, words
from tenure_protocol.work import DTYPES

NAMES = [(name, card) for card in TABLE for name in card.names]

# ------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(("name", "card"), NAMES, ids=[name for name, _ in NAMES])
def test_every_name_finds_its_card_as_written_and_as_a_rung_writes_it(
    name: str, card: Card
) -> None:
    for dtype, tflops in card.tflops.items():
        for written in (name, name.lower(), name.lower().replace(" ", "-")):
            found = peak(written, dtype)
            assert found is not None
            assert (found.flops_per_s, found.source) == (tflops * 1e12, card.source)
            assert found.measured is False


def test_no_name_is_ambiguous() -> None:
    owners = {words(name): card for name, card in NAMES}
    assert all(owners[words(name)] is card for name, card in NAMES)
    assert () not in owners
    repeated = [name for name, times in Counter(name for name, _ in NAMES).items() if times > 1]
    assert repeated == []


@pytest.mark.parametrize(
    ("by_the_driver", "by_people"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("Tesla T4", "t4"),
        ("Tesla T4", "nvidia-t4"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA L4", "l4"),
        ("Tesla P100-PCIE-16GB", "p100-pcie"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_drivers_and_people_mean_the_same_card(by_the_driver: str, by_people: str) -> None:
    assert dtypes_of(by_the_driver) == dtypes_of(by_people) != ()
    for dtype in dtypes_of(by_people):
        assert peak(by_the_driver, dtype) == peak(by_people, dtype)


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "",
        "nvidia",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a slice of a card
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "Quadro RTX 6000",  # of 2018, not the one of the Ada generation
        "NVIDIA A100-SXM4-64GB",  # made for one computer, with more cores
        "Tesla V100-FHHL-16GB",
        "NVIDIA T4G",
        "NVIDIA L4 + Tesla T4",
    ],
)
def test_a_name_that_only_resembles_is_unknown(name: str) -> None:
    assert all(peak(name, dtype) is None for dtype in DTYPES)
    assert dtypes_of(name) == ()


@given(st.sampled_from(NAMES), st.randoms(use_true_random=False), st.sampled_from([" ", "-", "_"]))
def test_order_case_separators_and_makers_do_not_matter(
    entry: tuple[str, Card], rng: object, separator: str
) -> None:
    name, card = entry
    parts = [*words(name), "NVIDIA", "GeForce"]
    rng.shuffle(parts)  # type: ignore[attr-defined]
    written = separator.join(part.upper() for part in parts)
    assert dtypes_of(written) == tuple(card.tflops)


@given(st.text(max_size=40), st.sampled_from(DTYPES))
def test_any_other_text_is_an_unknown_card(name: str, dtype: str) -> None:
    if dtypes_of(name):
        return
    assert peak(name, dtype) is None


# ------------------------------------------------------------------------------------ formats


MISSING = [(card.names[0], d) for card in TABLE for d in DTYPES if d not in card.tflops]


@pytest.mark.parametrize(("name", "dtype"), MISSING)
def test_a_format_the_card_has_no_peak_for_is_one_sentence(name: str, dtype: str) -> None:
    with pytest.raises(ValueError) as caught:
        peak(name, dtype)
    said = str(caught.value)
    assert (
        said
        == f"{name} has no datasheet peak in {dtype}; it has one in {', '.join(dtypes_of(name))}"
    )


@pytest.mark.parametrize("card", ["t4", "a card of tomorrow"])
@pytest.mark.parametrize("dtype", ["float16", "FP16", ""])
def test_what_is_no_format_is_refused_for_every_card(card: str, dtype: str) -> None:
    with pytest.raises(ValueError, match="fp64, fp32, tf32, bf16, fp16, fp8, int8"):
        peak(card, dtype)


def test_the_table_cannot_be_changed_by_who_reads_it() -> None:
    with pytest.raises(TypeError):
        TABLE[0].tflops["fp32"] = 1.0  # type: ignore[index]


# ------------------------------------------------------------------- the chip behind the numbers

#: FLOPs of one SM (or CU) and clock, dense, with sums in FP32. Architecture whitepapers of each.
PASCAL = {"fp64": 64, "fp32": 128, "fp16": 256}
VOLTA = {"fp64": 64, "fp32": 128, "fp16": 1024}
TURING = {"fp32": 128, "fp16": 1024, "int8": 2048}
GA100 = {"fp64": 128, "fp32": 128, "tf32": 1024, "bf16": 2048, "fp16": 2048, "int8": 4096}
GA102 = {"fp32": 256, "tf32": 512, "bf16": 1024, "fp16": 1024, "int8": 2048}
ADA = {**GA102, "fp8": 2048}
#: GeForce sums in FP32 at half the rate; A10G and L40 are as slow in every format.
GA102_HALF = {"fp32": 256, "tf32": 256, "bf16": 512, "fp16": 512, "int8": 2048}
A10G = {**GA102_HALF, "int8": 1024}
ADA_HALF = {**GA102_HALF, "fp8": 1024}
L40 = {**A10G, "fp8": 1024}
HOPPER_PLAIN = {"fp64": 256, "fp32": 256}
HOPPER_TENSOR = {"tf32": 2048, "bf16": 4096, "fp16": 4096, "fp8": 8192, "int8": 8192}
CDNA2 = {"fp64": 256, "fp32": 256, "bf16": 1024, "fp16": 1024, "int8": 1024}
CDNA3 = {
    "fp64": 256, "fp32": 256, "tf32": 1024, "bf16": 2048, "fp16": 2048, "fp8": 4096, "int8": 4096,
}  # fmt: skip

CHIPS = [
    ("p100", 56, 1480, PASCAL),
    ("p100-pcie", 56, 1303, PASCAL),
    ("v100", 80, 1530, VOLTA),
    ("v100-pcie", 80, 1380, VOLTA),
    ("v100s", 80, 1597, VOLTA),
    ("t4", 40, 1590, TURING),
    ("a100", 108, 1410, GA100),
    ("a30", 56, 1440, GA100),
    ("a10", 72, 1695, GA102),
    ("a10g", 80, 1710, A10G),
    ("a40", 84, 1740, GA102),
    ("a4000", 48, 1560, GA102),
    ("a5000", 64, 1695, GA102),
    ("a6000", 84, 1800, GA102),
    ("rtx-3090", 82, 1695, GA102_HALF),
    ("l4", 58, 2040, ADA),
    ("l40", 142, 2490, L40),
    ("l40s", 142, 2520, ADA),
    ("rtx-6000-ada", 142, 2505, ADA),
    ("rtx-4080", 76, 2505, ADA_HALF),
    ("rtx-4090", 128, 2520, ADA_HALF),
    ("rtx-5080", 84, 2617, ADA_HALF),
    ("rtx-5090", 170, 2407, ADA_HALF),
    ("h100", 132, 1980, HOPPER_PLAIN),
    ("h100", 132, 1830, HOPPER_TENSOR),
    ("h200", 132, 1980, HOPPER_PLAIN),
    ("h200", 132, 1830, HOPPER_TENSOR),
    ("gh200", 132, 1830, HOPPER_TENSOR),
    ("h100-pcie", 114, 1755, HOPPER_PLAIN),
    ("h100-pcie", 114, 1620, HOPPER_TENSOR),
    ("mi250x", 110, 1700, CDNA2),
    ("mi300x", 304, 2100, CDNA3),
]


@pytest.mark.parametrize(("name", "units", "mhz", "rates"), CHIPS)
def test_a_peak_is_units_times_clock_times_rate(
    name: str, units: int, mhz: int, rates: dict[str, int]
) -> None:
    """Within what datasheets round, 2.5 %: a slip, sparsity or another format is twofold."""
    for dtype in dtypes_of(name):
        if dtype in rates:
            found = peak(name, dtype)
            assert found is not None
            assert found.flops_per_s == pytest.approx(units * mhz * 1e6 * rates[dtype], rel=0.025)
    assert set(rates) & set(dtypes_of(name))


@pytest.mark.parametrize("card", TABLE, ids=lambda card: card.names[0])
def test_formats_stand_in_the_order_of_the_hardware(card: Card) -> None:
    found = card.tflops
    assert card.source and all(math.isfinite(value) and value > 0 for value in found.values())
    assert found.get("bf16", found["fp16"]) == found["fp16"]
    assert found["fp32"] <= found.get("tf32", found["fp16"]) <= found["fp16"]
    assert found.get("fp8", math.inf) >= found["fp16"]
    assert found.get("fp64", 0) <= found["fp32"]
    assert list(found) == [dtype for dtype in DTYPES if dtype in found]


def test_every_format_of_a_chip_is_checked_but_where_only_the_datasheet_knows() -> None:
    checked = {(words(name), dtype) for name, _, _, rates in CHIPS for dtype in rates}
    left = {
        card.names[0]
        for card in TABLE
        for dtype in card.tflops
        if not any((words(name), dtype) in checked for name in card.names)
    }
    assert left == {"B200", "GH200", "H100-NVL", "H200-NVL"}


# ----------------------------------------------------------------------------------- measured


class Ticks:
    """A clock on which every look is some seconds after the one before."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now_s = seconds, 0.0

    def monotonic_s(self) -> float:
        self.now_s += self.seconds
        return self.now_s


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    module = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setitem(peaks._SIZE, "cpu", 16)
    return module


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8"])
def test_a_measured_peak_is_flops_over_time_and_says_so(torch, dtype: str) -> None:  # type: ignore[no-untyped-def]
    found = measure(dtype, clock=Ticks(0.25))  # type: ignore[arg-type]
    assert found.flops_per_s == 2 * 16**3 / 0.25
    assert found.measured
    for part in ("measured", "16 x 16", dtype, "cpu", "threads", torch.__version__):
        assert part in found.source


def test_short_products_are_repeated_until_the_clock_can_tell(torch) -> None:  # type: ignore[no-untyped-def]
    found = measure("fp32", clock=Ticks(0.01))  # type: ignore[arg-type]
    assert found.flops_per_s == pytest.approx(2 * 16**3 * peaks._MOST_CALLS / 0.01)


def test_with_the_real_clock_it_is_a_number(torch) -> None:  # type: ignore[no-untyped-def]
    found = measure("fp32")
    assert math.isfinite(found.flops_per_s) and found.flops_per_s > 0


def test_a_clock_that_stands_measures_nothing(torch) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="took no time"):
        measure("fp32", clock=Ticks(0.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("allowed", ["ieee", "tf32"])
def test_fp32_is_measured_without_tf32_and_the_switch_is_put_back(
    torch,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
    allowed: str,
) -> None:
    switch = torch.backends.cuda.matmul
    before, seen = switch.fp32_precision, set()
    run = peaks._Product.run

    def watched(self: peaks._Product, calls: int) -> None:
        seen.add(switch.fp32_precision)
        run(self, calls)

    monkeypatch.setattr(peaks._Product, "run", watched)
    try:
        switch.fp32_precision = allowed
        measure("fp32", clock=Ticks(0.25))  # type: ignore[arg-type]
        assert (seen, switch.fp32_precision) == ({"ieee"}, allowed)
        with peaks._format_alone("tf32"):
            assert switch.fp32_precision == "tf32"
        assert switch.fp32_precision == allowed
    finally:
        switch.fp32_precision = before


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("fp64", "float64"), ("bf16", "bfloat16"), ("fp16", "float16"), ("int8", "int8")],
)
def test_each_format_is_multiplied_in_itself(torch, dtype: str, kind: str) -> None:  # type: ignore[no-untyped-def]
    product = peaks._Product(dtype, torch.device("cpu"), 16)
    assert product._left.dtype == product._right.dtype == getattr(torch, kind)


@pytest.mark.parametrize("dtype", ["tf32", "fp8"])
def test_a_format_the_processor_lacks_is_refused(torch, dtype: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=f"{dtype} cannot be measured on cpu") as caught:
        measure(dtype)
    assert "name another format" in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "capability", "refused"),
    [
        ("tf32", (7, 5), True),
        ("tf32", (8, 0), False),
        ("fp8", (8, 6), True),
        ("fp8", (9, 0), False),
        ("fp16", (7, 5), False),
    ],
)
def test_a_card_is_asked_whether_it_has_the_format(
    torch,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    capability: tuple[int, int],
    refused: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: capability)
    place = torch.device("cuda:0")
    if not refused:
        peaks._check_measurable(dtype, place)
        return
    with pytest.raises(ValueError, match=f"no {dtype}, which needs"):
        peaks._check_measurable(dtype, place)


@pytest.mark.parametrize("device", ["cuda:99", "meta", "a toaster"])
def test_a_device_that_is_not_there_is_one_sentence(torch, device: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError) as caught:
        measure("fp32", device)
    assert repr(device) in str(caught.value) and "\n" not in str(caught.value)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ValueError, match="measured with PyTorch; pip install torch"):
        measure("fp32")

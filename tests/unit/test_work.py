"""FLOPs: published counts, formulas against what is counted, and nothing changed or passed over."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure_protocol import work

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

ROOT = Path(__file__).parents[2]
slow_example = settings(max_examples=25, deadline=None)


def empty(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def encoder(width: int = 128, layers: int = 2, heads: int = 4) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


# --------------------------------------------------------------------------- published counts


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.after(x))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, sequence: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(sequence, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        return self.head(self.last(self.blocks(self.words(tokens) + self.places(places))))


class Bottleneck(nn.Module):
    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__()
        after = 4 * inner
        self.path = nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.path(x) + self.short(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for number in range(blocks):
            inner, stride = 64 * 2**stage, 2 if stage and not number else 1
            layers.append(Bottleneck(before, inner, stride))
            before = 4 * inner
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers)


def mobilenet() -> nn.Module:
    """MobileNet v1 at width 1 (Howard et al. 2017, table 1)."""
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    plan += [(512, 1)] * 5 + [(1024, 2), (1024, 1)]
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    before = 32
    for after, stride in plan:
        layers += [
            nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
            nn.BatchNorm2d(before), nn.ReLU(),
            nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        ]  # fmt: skip
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


def parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def test_gpt2_forward_at_1024_is_the_published_count() -> None:
    with torch.device("meta"):
        gpt2 = Gpt(layers=12, width=768, heads=12, sequence=1024, words=50257)
    assert parameters(gpt2) == 124_439_808  # 'GPT-2 124M', biases included
    tokens = torch.zeros(1, 1024, dtype=torch.long)
    counted = work.count(gpt2, tokens, backward=False)
    # Karpathy, nanoGPT, transformer_sizing.ipynb: forward_total, and its total of three passes
    assert counted.flops == pytest.approx(291_648_307_200, rel=0.02)
    assert counted.unsupported == {}
    assert work.count(gpt2, tokens).flops == pytest.approx(874_944_921_600, rel=0.02)
    weights = 12 * 12 * 768**2 + 50257 * 768
    assert work.transformer(weights, 1024, 12, 768, 1024, passes=1) == pytest.approx(
        counted.flops, rel=1e-9
    )


def test_resnet50_at_224_is_the_published_count() -> None:
    with torch.device("meta"):
        network = resnet50()
    assert parameters(network) == 25_557_032  # torchvision, ResNet50_Weights
    counted = work.count(network, empty(1, 3, 224, 224), backward=False)
    assert counted.flops == pytest.approx(2 * 4.089e9, rel=0.02)  # the same place, multiply-adds
    assert counted.unsupported == {}


def test_depthwise_separable_convolutions_are_the_published_count() -> None:
    with torch.device("meta"):
        network = mobilenet()
    counted = work.count(network, empty(1, 3, 224, 224), backward=False)
    assert counted.flops == pytest.approx(2 * 569e6, rel=0.02)  # the paper's table 4, mult-adds
    one = nn.Conv2d(128, 128, 3, padding=1, groups=128, bias=False)
    # the paper, section 3.1: D_K D_K M D_F D_F
    assert work.count(one, empty(1, 128, 56, 56), backward=False).flops == 2 * 9 * 128 * 56 * 56


@pytest.mark.parametrize("training", [True, False])
def test_the_two_layer_transformer_is_exact(training: bool) -> None:
    module = encoder().train(training)
    counted = work.count(module, torch.randn(1, 64, 128))
    assert counted.flops == 163_577_856
    assert work.count(module, torch.randn(1, 64, 128), backward=False).flops == 54_525_952
    assert work.transformer(2 * 12 * 128**2, 64, 2, 128, 64) == 163_577_856


def test_a_frozen_encoder_without_gradients_is_not_fused_away() -> None:
    module = encoder().eval().requires_grad_(False)
    with torch.no_grad():
        counted = work.count(module, torch.randn(1, 64, 128), backward=False)
    assert counted.flops == 54_525_952


@given(st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 8), st.integers(1, 200))
@settings(max_examples=12, deadline=None)
def test_attention_over_weights_is_s_over_6d(
    layers: int, heads: int, times: int, sequence: int
) -> None:
    width = 8 * heads * times
    counted = work.count(encoder(width, layers, heads), empty(1, sequence, width)).by_operator
    attention = counted["aten.bmm"]
    weights = sum(counted.values()) - attention
    assert attention / weights == pytest.approx(work.attention_share(width, sequence), rel=1e-12)


# ------------------------------------------------------------------------- formulas v counting


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor, dict[str, object]]:
    dimensions = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 4))
    batch = draw(st.integers(1, 3))
    channels_in = groups * draw(st.integers(1, 4))
    channels_out = groups * draw(st.integers(1, 4))
    transposed = draw(st.booleans())
    sizes = [draw(st.integers(6, 12)) for _ in range(dimensions)]
    kernel = [draw(st.integers(1, 3)) for _ in range(dimensions)]
    stride, padding = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    dilation = draw(st.integers(1, 2))
    plain = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    turned = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1]
    with torch.device("meta"):
        module = (turned if transposed else plain)(
            channels_in, channels_out, kernel, stride, padding,
            groups=groups, dilation=dilation, bias=draw(st.booleans()),
        )  # fmt: skip
        output = [
            (size + 2 * padding - dilation * (k - 1) - 1) // stride + 1
            for size, k in zip(sizes, kernel, strict=True)
        ]
    given_to = {
        "output": sizes if transposed else output,
        "kernel": kernel,
        "channels_in": channels_in,
        "channels_out": channels_out,
        "groups": groups,
        "batch": batch,
    }
    return module, empty(batch, channels_in, *sizes), given_to


@given(convolutions())
@settings(max_examples=80, deadline=None)
def test_a_convolution_counts_what_the_formula_says(
    case: tuple[nn.Module, Tensor, dict[str, object]],
) -> None:
    module, batch, terms = case
    forward = work.count(module, batch, backward=False)
    assert forward.flops == work.convolution(**terms, passes=1)  # type: ignore[arg-type]
    assert work.count(module, batch).flops == work.convolution(**terms)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 5), max_size=3), st.integers(1, 40), st.integers(1, 40))
@slow_example
def test_a_linear_layer_counts_what_the_formula_says(
    leading: list[int], features_in: int, features_out: int
) -> None:
    module, batch = nn.Linear(features_in, features_out), empty(*leading, features_in)
    rows = math.prod(leading)
    assert work.count(module, batch).flops == work.linear(rows, features_in, features_out)
    forward = work.count(module, batch, backward=False)
    assert forward.flops == work.linear(rows, features_in, features_out, passes=1)


@given(st.integers(1, 6), st.integers(2, 5))
@slow_example
def test_times_the_batch_is_times_the_flops(batch: int, times: int) -> None:
    with torch.device("meta"):
        modules: list[tuple[nn.Module, tuple[int, ...]]] = [
            (encoder(16, 1, 2), (8, 16)),
            (Bottleneck(8, 4, 2).eval(), (8, 9, 9)),
            (nn.GRU(6, 5, batch_first=True), (3, 6)),
        ]
    for module, shape in modules:
        one = work.count(module, empty(batch, *shape), backward=False).flops
        more = work.count(module, empty(times * batch, *shape), backward=False).flops
        assert one > 0 and more == times * one


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.integers(1, 100), st.integers(1, 1000))
def test_the_formula_grows_as_it_should(
    weights: float, tokens: float, layers: int, width: int
) -> None:
    one = work.transformer(weights, tokens, layers, width, sequence=64)
    assert work.transformer(weights, 2 * tokens, layers, width, 64) == pytest.approx(2 * one)
    assert work.transformer(weights, tokens, layers, width, 64, passes=1) == pytest.approx(one / 3)
    longer = work.transformer(weights, tokens, layers, width, sequence=128)
    attention = 12 * layers * width * 64 * tokens
    assert longer - one == pytest.approx(attention, rel=1e-6, abs=1e-9 * longer)


def test_frozen_weights_have_no_gradient_to_count() -> None:
    layer = nn.Linear(8, 8)
    whole = work.count(layer, empty(4, 8)).flops
    assert work.count(layer.requires_grad_(False), empty(4, 8)).flops == whole * 2 / 3


# ------------------------------------------------------------------------- nothing is passed over


class Odd(nn.Module):
    """Arithmetic no counter has a formula for."""

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.fft.fft(x).real
        return waves + torch.linalg.inv(x) + torch.cdist(x, x)


@torch.library.custom_op("tenure_tests::mystery", mutates_args=())
def mystery(x: Tensor) -> Tensor:
    return x @ x


@mystery.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Mystery(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return mystery(x) @ x


def test_operators_without_a_formula_are_named() -> None:
    counted = work.count(Odd(), empty(2, 4, 4), backward=False)
    assert {"aten._fft_r2c", "aten.linalg_inv_ex"} <= set(counted.unsupported)
    assert any("cdist" in name for name in counted.unsupported)
    assert counted.flops == 0


def test_an_operator_of_somebody_else_is_named_and_the_rest_is_counted() -> None:
    counted = work.count(Mystery(), empty(4, 4), backward=False)
    assert counted.unsupported == {"tenure_tests.mystery": 1}
    assert counted.flops == work.linear(4, 4, 4, passes=1)


def test_products_with_vectors_count() -> None:
    class Vectors(nn.Module):
        def forward(self, matrix: Tensor, vector: Tensor) -> Tensor:
            return torch.dot(matrix @ vector, torch.addmv(vector, matrix, vector))

    counted = work.count(Vectors(), empty(8, 8), empty(8), backward=False)
    assert counted.flops == 2 * 64 + 2 * 64 + 2 * 8
    assert counted.unsupported == {}


class Heard(TorchDispatchMode):
    """Every operator, with the devices of what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, bool] = {}
        self.devices: set[str] = set()  # of what is no view

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.names[str(func._overloadpacket)] = func.is_view
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, Tensor) and not func.is_view:
                self.devices.add(each.device.type)
        return out


MODULES = {
    "encoder": lambda: (encoder(16, 1, 2), torch.randn(2, 4, 16)),
    "convolutions": lambda: (mobilenet(), torch.randn(2, 3, 32, 32)),
    "recurrent": lambda: (nn.LSTM(4, 4), torch.randn(3, 2, 4)),
    "no formula": lambda: (Odd(), torch.randn(2, 4, 4)),
    "elementwise": lambda: (nn.Sequential(nn.GELU(), nn.Softmax(-1)), torch.randn(4)),
}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_operator_that_runs_is_told_somewhere(name: str) -> None:
    module, batch = MODULES[name]()
    with Heard() as heard:
        told = work.count(module, batch, backward=False)
    seen = {operator for operator, is_view in heard.names.items() if not is_view}
    groups = (set(told.by_operator), set(told.unsupported), set(told.elementwise))
    before = {"aten.empty_like", "aten.clone"}  # by which the copy and its inputs are made
    assert len(seen) > 1 and seen - before <= set.union(*groups)
    assert sum(map(len, groups)) == len(set.union(*groups))  # in one group only
    assert told.flops == sum(told.by_operator.values())


def test_usual_modules_need_no_excuse() -> None:
    for name in ("encoder", "convolutions", "recurrent", "elementwise"):
        assert work.count(*MODULES[name]()).unsupported == {}, name


# ------------------------------------------------------------------------------ nothing is changed


class Stateful(nn.Module):
    """Counts its calls, keeps tensors where nobody registers them, drops out."""

    def __init__(self, hidden: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.loose, self.listed, self.calls = torch.ones(4), [torch.ones(4)], 0
        self.hidden = [nn.Parameter(torch.ones(4), requires_grad=hidden)]
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        return self.layers(x) * self.loose + self.listed[0] + self.hidden[0]


def state(module: Stateful) -> list[object]:
    tensors = [*module.parameters(), *module.buffers(), module.loose, *module.listed]
    tensors += module.hidden
    return [
        module.calls,
        module.training,
        torch.get_rng_state().tolist(),
        [(id(each), each.data_ptr(), each.device.type, each.tolist()) for each in tensors],
        [each.grad for each in tensors],
        [len(part._forward_hooks) for part in module.modules()],
    ]


@pytest.mark.parametrize("use", ["count", "table"])
def test_the_module_given_is_as_before(use: str) -> None:
    if use == "table":
        pytest.importorskip("fvcore", reason="fvcore is not installed")
    # a trace takes no hidden parameter with a gradient
    module, batch = Stateful(hidden=use == "count"), torch.randn(3, 4)
    before, given_before = state(module), batch.clone()
    getattr(work, use)(module, batch)
    assert state(module) == before
    assert torch.equal(batch, given_before) and not batch.requires_grad


def test_nothing_is_computed_on_a_device() -> None:
    batch, module = torch.randn(3, 4), Stateful()
    with Heard() as heard:
        work.count(module, batch)
    assert heard.devices == {"meta"}


def test_a_model_larger_than_any_memory_is_counted() -> None:
    with torch.device("meta"):
        layer = nn.Linear(10**7, 10**7, bias=False)
    assert work.count(layer, empty(1, 10**7), backward=False).flops == 2e14


def test_shared_weights_stay_shared_in_the_copy() -> None:
    gpt = Gpt(layers=1, width=8, heads=2, sequence=4, words=11)
    shadow = work._without_data(gpt)
    assert shadow.head.weight is shadow.words.weight
    assert shadow.head.weight.is_meta and not gpt.head.weight.is_meta


# --------------------------------------------------------------------------- inputs and outputs


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Answer:
    loss: Tensor
    note: str


class Wrapped(nn.Module):
    """Takes and returns tensors in wrappings, and changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, pair: Pair, more: Mapping[str, list[Tensor]], times: int) -> Answer:
        pair.left.add_(1.0)
        total = self.layer(pair.left) + self.layer(pair.right) + self.layer(more["x"][0])
        return Answer((total * times).sum(), "fine")


def test_wrapped_inputs_and_outputs_are_found() -> None:
    counted = work.count(
        Wrapped(), Pair(torch.ones(2, 4), torch.ones(2, 4)), {"x": [torch.ones(2, 4)]}, 3
    )
    assert counted.flops == 3 * work.linear(2, 4, 4)


@pytest.mark.parametrize(
    ("module", "batch", "words"),
    [
        (nn.Linear(4, 4), (torch.ones(2, 5),), "Linear cannot be counted without data"),
        (nn.Linear(4, 4), (), "Linear cannot be counted without data"),
        (nn.Flatten(), (torch.ones(2, 3, dtype=torch.long),), "no output has a gradient"),
    ],
)
def test_what_cannot_be_counted_is_one_sentence(
    module: nn.Module, batch: tuple[Tensor, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        work.count(module, *batch)
    assert "\n" not in str(caught.value) and "give inputs" in str(caught.value)


def test_a_forward_that_looks_at_its_data_says_so() -> None:
    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum().item() > 0 else -x

    with pytest.raises(ValueError, match="Looks cannot be counted without data"):
        work.count(Looks(), torch.ones(3))


# -------------------------------------------------------------------------------------- the table


@pytest.fixture
def fvcore() -> None:
    pytest.importorskip("fvcore", reason="fvcore is not installed")


@pytest.mark.usefixtures("fvcore")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["encoder", "convolutions", "elementwise"])
def test_the_whole_row_is_what_is_counted(name: str, training: bool) -> None:
    module, batch = MODULES[name]()
    module.train(training)
    rows = work.table(module, batch)
    assert (rows[0].module, rows[0].kind) == ("", type(module).__name__)
    assert rows[0].flops == work.count(module, batch, backward=False).flops
    assert {row.module for row in rows} == {name for name, _ in module.named_modules()}


@pytest.mark.usefixtures("fvcore")
def test_children_add_up_and_attention_is_doubled_too() -> None:
    block = Block(width=16, heads=2)
    rows = {row.module: row for row in work.table(block, torch.randn(2, 8, 16))}
    assert rows["qkv"].flops == work.linear(16, 16, 48, passes=1)
    assert rows["mlp"].flops == rows["mlp.0"].flops + rows["mlp.2"].flops
    children = sum(rows[name].flops for name in ("qkv", "out", "mlp"))
    assert rows[""].flops - children == 2 * 2 * 2 * 8 * 8 * 16  # two products a head
    assert rows["mlp.1"].flops == 0 and "aten::gelu" in rows["mlp.1"].unsupported


@pytest.mark.usefixtures("fvcore")
def test_the_table_names_what_it_has_no_count_for() -> None:
    whole = work.table(Odd(), torch.randn(2, 4, 4))[0]
    assert {"aten::fft_fft", "aten::linalg_inv", "aten::cdist"} <= set(whole.unsupported)


@pytest.mark.usefixtures("fvcore")
def test_a_table_needs_weights_and_inputs_that_fit() -> None:
    with torch.device("meta"):
        nowhere = nn.Linear(4, 4)
    for module, batch, why in (
        (nowhere, empty(2, 4), "is on the meta device"),
        (nn.Linear(4, 4), torch.ones(2, 5), "cannot be traced"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            work.table(module, batch)
        assert "\n" not in str(caught.value)


def test_a_table_without_fvcore_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fvcore", None)
    monkeypatch.setitem(sys.modules, "fvcore.nn", None)
    with pytest.raises(ValueError, match="needs fvcore, which is not installed"):
        work.table(nn.Linear(2, 2), torch.ones(1, 2))


# ------------------------------------------------------------------------------- bad input, rest


@pytest.mark.parametrize("flops", [0, -1.0, math.nan, math.inf])
def test_work_is_positive_and_finite(flops: float) -> None:
    with pytest.raises(ValueError, match="positive, finite"):
        work.Work(flops, "bf16")


@pytest.mark.parametrize("dtype", ["float32", "BF16", "", "fp4"])
def test_work_names_the_formats_there_are(dtype: str) -> None:
    with pytest.raises(ValueError, match="fp64, fp32, tf32, bf16, fp16, fp8, int8"):
        work.Work(1.0, dtype)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: work.transformer(0, 1, 1, 1, 1), "parameters is 0"),
        (lambda: work.transformer(1, math.nan, 1, 1, 1), "tokens is nan"),
        (lambda: work.attention_share(0, 8), "width is 0"),
        (lambda: work.convolution((8, 8), (3,), 4, 4), "2 sizes and a kernel of 1"),
        (lambda: work.convolution((), (), 4, 4), "output is 0"),
        (lambda: work.convolution((8,), (3,), 4, 6, groups=4), "do not split into 4 groups"),
        (lambda: work.linear(1, -1, 1), "features_in is -1"),
    ],
)
def test_formulas_refuse_what_makes_no_sense(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        call()
    assert "give" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16"), ("float64", "fp64")],
)
def test_the_format_of_most_parameters_is_the_modules(kind: str, name: str) -> None:
    module = nn.Sequential(nn.Linear(9, 9).to(getattr(torch, kind)), nn.LayerNorm(9))
    assert work.dtype_of(module) == name


def test_a_module_without_a_known_format_is_told_to_name_one() -> None:
    for module in (nn.ReLU(), nn.Linear(2, 2, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="fp64, fp32"):
            work.dtype_of(module)


def test_nothing_heavy_is_imported_with_the_modules() -> None:
    program = (
        "import sys; sys.path.insert(0, 'worker'); import tenure_protocol.peaks; "
        "print([n for n in ('torch', 'fvcore', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.strip() == "[]"


def test_the_pages_example_says_what_it_prints() -> None:
    text = (ROOT / "docs" / "work.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    printed: list[str] = []
    exec(block, {"print": lambda *values: printed.append(" ".join(map(str, values)))})
    assert printed == re.findall(r"# (.*)$", block, re.MULTILINE)

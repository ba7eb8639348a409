"""How many floating-point operations a step costs, known before it runs.

One multiply-add counts as two FLOPs. What grows with the elements only (activations, normalisation,
softmax, copies) counts as none, as in the published counts: it is bound by memory, and is told in
:attr:`Counted.elementwise`. What is neither counted nor cheap is told in :attr:`Counted.unsupported`.

Sources: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1 (6 N per token);
Chowdhery et al. 2022, "PaLM", appendix B (12 L H Q T per token for attention, H Q = d); Dumoulin and
Visin 2016, "A guide to convolution arithmetic", for the output sizes a convolution is given here.

Standard library only at import; torch and fvcore are imported where a module is counted.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import torch

#: The names of number formats, here and in peaks. Never one for another: they differ up to 60 times.
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
#: Forward, gradient of the input, gradient of the weights: each is as many multiply-adds.
TRAINING_PASSES = 3

_OF_TORCH = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8",
    "float8_e5m2fnuz": "fp8",
    "int8": "int8",
}


@dataclass(frozen=True)
class Work:
    """The FLOPs of one step, and the number format they are done in."""

    flops: float  # of one step: forward, backward, and of the optimizer what was counted
    dtype: str  # one of DTYPES

    def __post_init__(self) -> None:
        if not (math.isfinite(self.flops) and self.flops > 0):
            raise ValueError(
                f"a step of {self.flops} FLOPs: give a positive, finite number of FLOPs"
            )
        check_dtype(self.dtype)


def check_dtype(dtype: str) -> str:
    """The name itself. Raises :class:`ValueError` unless it is one of :data:`DTYPES`.

    >>> check_dtype("bf16")
    'bf16'
    """
    if dtype not in DTYPES:
        raise ValueError(f"{dtype!r} is no number format known here; write {', '.join(DTYPES)}")
    return dtype


# -------------------------------------------------------------------------------- formulas


def transformer(
    parameters: float,
    tokens: float,
    layers: int,
    width: int,
    sequence: int,
    passes: int = TRAINING_PASSES,
) -> float:
    """FLOPs of a transformer over ``tokens`` tokens in sequences of ``sequence``: 6 N D + 12 L d s D.

    ``parameters`` are those that multiply: without the embeddings that are only looked up, with the
    output head. Attention counts whole, a causal mask saves nothing in it. ``passes=1`` is forward.
    Source: Kaplan 2020, section 2.1, for 6 N; PaLM 2022, appendix B, for 12 L d s.

    >>> transformer(2 * 12 * 128**2, tokens=64, layers=2, width=128, sequence=64)
    163577856.0
    """
    _check_positive(
        parameters=parameters, tokens=tokens, layers=layers, width=width, sequence=sequence
    )
    _check_positive(passes=passes)
    return float(passes * tokens * (2 * parameters + 4 * layers * width * sequence))


def attention_share(width: int, sequence: int) -> float:
    """FLOPs of attention over those of the weights, s / 6d, where a layer has 12 d^2 parameters.

    Of all FLOPs it is the part r / (1 + r). The head and other shapes of the MLP make it smaller or
    larger.

    >>> round(attention_share(width=768, sequence=1024), 3)
    0.222
    """
    _check_positive(width=width, sequence=sequence)
    return sequence / (6 * width)


def convolution(
    output: Sequence[int],
    kernel: Sequence[int],
    channels_in: int,
    channels_out: int,
    groups: int = 1,
    batch: int = 1,
    passes: int = TRAINING_PASSES,
) -> float:
    """FLOPs of a convolution: H_out W_out C_out K_h K_w C_in / groups multiply-adds, times 2.

    ``output`` and ``kernel`` are the spatial sizes (one to three numbers). Of a transposed
    convolution, give the spatial size of its *input* as ``output``.

    >>> convolution((112, 112), (7, 7), 3, 64, passes=1)
    236027904.0
    >>> convolution((56, 56), (3, 3), 128, 128, groups=128, passes=1)  # depthwise
    7225344.0
    """
    if len(output) != len(kernel):
        raise ValueError(
            f"an output of {len(output)} sizes and a kernel of {len(kernel)}: give as many of each"
        )
    _check_positive(
        output=min(output, default=0),
        kernel=min(kernel, default=0),
        channels_in=channels_in,
        channels_out=channels_out,
        groups=groups,
        batch=batch,
        passes=passes,
    )
    if channels_in % groups or channels_out % groups:
        raise ValueError(
            f"{channels_in} channels in and {channels_out} out do not split into {groups} groups; "
            f"give a number of groups that divides both"
        )
    macs = batch * math.prod(output) * channels_out * math.prod(kernel) * (channels_in // groups)
    return float(passes * 2 * macs)


def linear(rows: int, features_in: int, features_out: int, passes: int = TRAINING_PASSES) -> float:
    """FLOPs of a linear layer over ``rows`` vectors: 2 rows in out, times the passes.

    >>> linear(64, 128, 512)
    25165824.0
    """
    _check_positive(rows=rows, features_in=features_in, features_out=features_out, passes=passes)
    return float(passes * 2 * rows * features_in * features_out)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; give a positive number")


# ---------------------------------------------------------------------------------- counting


@dataclass(frozen=True)
class Counted:
    """What one batch costs."""

    flops: float
    by_operator: Mapping[str, float]  # FLOPs by operator, such as aten.mm; they add up to flops
    unsupported: Mapping[str, int]  # calls of operators whose FLOPs nobody knows: flops lacks them
    elementwise: Mapping[str, int]  # calls counted as 0, because they grow with the elements only


def count(module: torch.nn.Module, *inputs: object, backward: bool = True) -> Counted:
    """The FLOPs of ``module`` over one batch, counted operator by operator on the meta device.

    Nothing is computed and no weight is stored twice: a copy of the module without data runs
    forward and, with ``backward``, back. The module given is not touched; hooks of it run on the
    copy. Inputs of floating point count the gradient that goes into them, so that every layer has
    its three passes as in the formulas; a real first layer saves that one. Frozen parameters count
    no gradient of their own.

    Source: ``torch.utils.flop_counter``, with :func:`_more_formulas`. On the meta device because on
    the CPU it counts 0 for attention and for the fused path of a transformer encoder.

    Raises :class:`ValueError` where the module cannot run without data.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    calls = _recorder()
    counter = FlopCounterMode(display=False, custom_mapping=_more_formulas())
    try:
        shadow = _without_data(module)
        with torch.enable_grad():
            arguments = [_on_meta(each) for each in inputs]
        with torch.enable_grad(), torch.device("meta"), calls, counter:
            outputs = shadow(*arguments)
            if backward:
                _back(outputs)
    except Exception as error:  # the user's forward may raise anything
        raise ValueError(
            f"{type(module).__name__} cannot be counted without data ({_first_line(error)}); "
            f"give inputs that its forward takes, or FLOPs by a formula of tenure_protocol.work"
        ) from error
    by_operator = {
        str(name): float(flops)
        for name, flops in counter.get_flop_counts().get("Global", {}).items()
    }
    unsupported, elementwise = _sorted_out(calls.seen, set(by_operator))
    return Counted(float(sum(by_operator.values())), by_operator, unsupported, elementwise)


def dtype_of(module: torch.nn.Module) -> str:
    """The number format most of a module's parameters are in.

    Autocast and TF32 cannot be seen in the parameters: who uses them names the format himself.
    """
    sizes: Counter[str] = Counter()
    for parameter in module.parameters():
        sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    if not sizes:
        raise ValueError(
            f"{type(module).__name__} has no parameters; name its number format: {', '.join(DTYPES)}"
        )
    most = max(sizes, key=sizes.__getitem__)
    if most not in _OF_TORCH:
        raise ValueError(
            f"{type(module).__name__} has parameters of {most}, which is no number format known "
            f"here; name one of {', '.join(DTYPES)}"
        )
    return _OF_TORCH[most]


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")


def _without_data(module: torch.nn.Module) -> torch.nn.Module:
    """A deep copy whose every tensor, wherever it hangs, is on the meta device."""
    import torch
    from torch.overrides import TorchFunctionMode

    class _Emptied(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self,
            func: object,
            types: object,
            args: Sequence[torch.Tensor] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            if func in (torch.Tensor.__deepcopy__, torch.Tensor.clone):
                with torch.no_grad():
                    return torch.empty_like(args[0], device="meta").requires_grad_(
                        args[0].requires_grad
                    )
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    memo: dict[int, object] = {
        id(each): torch.nn.Parameter(
            torch.empty_like(each, device="meta"), requires_grad=each.requires_grad
        )
        for each in module.parameters()
    }
    # Tensors that are no parameters meet the mode; the memo of deepcopy keeps each of them one.
    with _Emptied():
        return copy.deepcopy(module, memo)


def _on_meta(value: object) -> object:
    """Tensors without their data, in whatever tuples, lists and mappings they come."""
    import torch

    if isinstance(value, torch.Tensor):
        empty = torch.empty_like(value, device="meta")
        if not (value.is_floating_point() or value.is_complex()):
            return empty
        return empty.requires_grad_().clone()  # no leaf: a forward may change its input in place
    if isinstance(value, Mapping):
        return {key: _on_meta(each) for key, each in value.items()}
    if isinstance(value, tuple) and (make := getattr(value, "_make", None)):  # a named tuple
        return make(map(_on_meta, value))
    if isinstance(value, tuple | list):
        return type(value)(map(_on_meta, value))
    return value


def _back(outputs: object) -> None:
    """Run backward from every output that has a gradient."""
    import torch

    ends = [each for each in _tensors(outputs) if each.requires_grad]
    if not ends:
        raise ValueError("no output has a gradient, so there is no backward")
    torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])


def _tensors(value: object) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


# ------------------------------------------------------------------------- which operators count


#: Operators without a tag that says so, whose cost grows with the elements only: moves and fills,
#: normalisation, softmax, pooling, interpolation, losses, reductions, random numbers.
_CHEAP = frozenset(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _embedding_bag _fused_dropout _fused_rms_norm
    _fused_rms_norm_backward _log_softmax _log_softmax_backward_data _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _reshape_alias
    _safe_softmax _softmax _softmax_backward_data _to_copy _unsafe_view
    adaptive_max_pool2d adaptive_max_pool2d_backward all amax amin any arange argmax argmin
    avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward batch_norm_backward bernoulli
    bernoulli_ bucketize cat constant_pad_nd copy_ cummax cummin cumprod cumsum diagonal_scatter
    embedding embedding_dense_backward empty empty_like empty_strided expand_copy eye fill_ flip
    full full_like gather index index_add index_add_ index_copy index_put index_put_ index_select
    lift_fresh lift_fresh_copy linalg_vector_norm logcumsumexp logsumexp masked_scatter
    max max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward mean median min multi_margin_loss native_batch_norm
    native_batch_norm_backward native_dropout native_dropout_backward native_group_norm
    native_group_norm_backward native_layer_norm native_layer_norm_backward new_empty
    new_empty_strided new_full new_ones new_zeros nll_loss2d_backward nll_loss2d_forward
    nll_loss_backward nll_loss_forward normal_ one_hot ones ones_like prod rand rand_like randint
    randn randn_like randperm reflection_pad1d reflection_pad1d_backward reflection_pad2d
    reflection_pad2d_backward repeat repeat_interleave replication_pad1d replication_pad2d roll
    scalar_tensor scatter scatter_ scatter_add scatter_add_ scatter_reduce select_backward select_scatter
    slice_backward slice_scatter split_with_sizes_copy stack std std_mean sum topk trace tril triu
    unfold_backward unsafe_split unsafe_split_with_sizes uniform_ upsample_bicubic2d
    upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest2d_backward upsample_trilinear3d var var_mean
    vector_norm zero_ zeros zeros_like
    """.split()
)


class _Recorder(Protocol):
    """Notes every operator that runs while it is entered."""

    seen: Counter[object]

    def __enter__(self) -> object: ...
    def __exit__(self, *_: object) -> object: ...


def _recorder() -> _Recorder:
    from torch.utils._python_dispatch import TorchDispatchMode

    class _Calls(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: Counter[object] = Counter()

        def __torch_dispatch__(
            self,
            func: Callable[..., object],
            types: object,
            args: Sequence[object] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            self.seen[func] += 1
            return func(*args, **(kwargs or {}))

    return _Calls()


def _sorted_out(
    seen: Mapping[object, int], counted: Collection[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """The calls of operators that were not counted: those nobody knows, and the cheap ones."""
    unsupported: Counter[str] = Counter()
    elementwise: Counter[str] = Counter()
    for operator, calls in seen.items():
        name = str(getattr(operator, "_overloadpacket", operator))
        if name in counted or getattr(operator, "is_view", False):
            continue
        (elementwise if _cheap(operator, name) else unsupported)[name] += calls
    return dict(sorted(unsupported.items())), dict(sorted(elementwise.items()))


def _cheap(operator: object, name: str) -> bool:
    import torch

    namespace, _, base = name.rpartition(".")
    pointwise = torch.Tag.pointwise in getattr(operator, "tags", ())
    return pointwise or (namespace in ("aten", "prim") and base in _CHEAP)


def _more_formulas() -> dict[object, Callable[..., int]]:
    """Formulas the counter of PyTorch lacks, or has wrong. Shapes in, FLOPs out.

    It has none for products with a vector; and for the gradient of a convolution's weights it
    overlooks the groups (torch 2.13: 128 times too much for a depthwise one of 128 channels).
    """
    import torch

    aten = torch.ops.aten

    def product(matrix: Sequence[int], *_: object, **__: object) -> int:
        return 2 * math.prod(matrix)

    def addmv(_added: object, matrix: Sequence[int], *_: object, **__: object) -> int:
        return 2 * math.prod(matrix)

    def convolution_backward(
        gradient: Sequence[int],
        inputs: Sequence[int],
        weights: Sequence[int],
        *rest: object,
        **_: object,
    ) -> int:
        transposed, wanted = rest[4], cast(Sequence[bool], rest[7])
        positions = (inputs if transposed else gradient)[2:]
        one = 2 * inputs[0] * math.prod(positions) * math.prod(weights)
        return one * sum(wanted[:2])  # of the inputs, of the weights; the bias is a sum

    return {
        **dict.fromkeys((aten.mv, aten.dot, aten.vdot), product),
        aten.addmv: addmv,
        aten.convolution_backward: convolution_backward,
    }


# ------------------------------------------------------------------------------- module by module


#: What fvcore estimates in other units than multiply-adds: left out, as in :func:`count`.
_ESTIMATED = (
    "adaptive_avg_pool2d",
    "batch_norm",
    "grid_sampler",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "upsample_bilinear2d",
    "upsample_nearest2d",
)


@dataclass(frozen=True)
class Row:
    """One module of a table; what it calls is in it."""

    module: str  # its dotted name; empty for the whole
    kind: str  # its class
    flops: float  # forward only
    unsupported: Mapping[str, int]  # calls of operators fvcore has no count for: flops lacks them


def table(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[Row, ...]:
    """Forward FLOPs of every module by fvcore, the whole first; fvcore's multiply-adds are doubled.

    fvcore traces, so the forward pass really runs, where the weights are: on a copy that shares
    them, with the switches, buffers and random numbers of the module given left as they are. It
    tells every operator it has no count for, the cheap ones too.

    Raises :class:`ValueError` without fvcore, and where the module cannot be traced.
    """
    import torch

    try:
        fvcore = importlib.import_module("fvcore.nn")
    except ImportError as error:
        raise ValueError(
            "the table of modules needs fvcore, which is not installed; pip install fvcore"
        ) from error
    if any(each.is_meta for each in module.parameters()):
        raise ValueError(
            f"{type(module).__name__} is on the meta device, and a table needs its weights; "
            f"make the module on a device, or use count"
        )
    cards = sorted({each.device.index for each in module.parameters() if each.is_cuda})
    try:
        shadow = _sharing_weights(module)
        with torch.no_grad(), torch.random.fork_rng(cards), _slow_attention():
            analysis = fvcore.FlopCountAnalysis(shadow, tuple(each.clone() for each in inputs))
            analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
            analysis.tracer_warnings("none")
            for name, macs in _handles().items():
                analysis.set_op_handle(f"aten::{name}", macs)
            by_module = analysis.by_module_and_operator()
            unknown = {name: dict(analysis.unsupported_ops(name)) for name in by_module}
    except Exception as error:  # the user's forward may raise anything
        raise ValueError(
            f"{type(module).__name__} cannot be traced ({_first_line(error)}); "
            f"give tensors that its forward takes, or use count"
        ) from error
    kinds = {name: type(each).__name__ for name, each in shadow.named_modules()}
    return tuple(
        Row(name, kinds.get(name, ""), 2.0 * sum(operators.values()), unknown[name])
        for name, operators in by_module.items()
    )


def _sharing_weights(module: torch.nn.Module) -> torch.nn.Module:
    """A deep copy that has the same weights, not equal ones; buffers are its own."""
    import torch

    memo: dict[int, object] = {
        id(each): torch.nn.Parameter(each.detach(), requires_grad=each.requires_grad)
        for each in module.parameters()
    }
    return copy.deepcopy(module, memo)


@contextmanager
def _slow_attention() -> Iterator[None]:
    """Keep a transformer encoder off its fused path, which is one operator without a count."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _handles() -> dict[str, Callable[..., object]]:
    """Multiply-adds of what attention is made of and fvcore does not know, and none for estimates.

    Its own handle of matmul takes no vectors and overlooks what is broadcast.
    """
    shape = importlib.import_module("fvcore.nn.jit_handles").get_shape

    def attention(inputs: Sequence[object], outputs: Sequence[object]) -> int:
        query, key, value = (shape(each) for each in inputs[:3])
        return int(math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))

    def baddbmm(inputs: Sequence[object], outputs: Sequence[object]) -> int:
        return int(math.prod(shape(outputs[0])) * shape(inputs[1])[-1])

    def product(inputs: Sequence[object], outputs: Sequence[object]) -> int:
        return int(math.prod(shape(outputs[0])) * shape(inputs[0])[-1])

    def nothing(inputs: Sequence[object], outputs: Sequence[object]) -> Counter[str]:
        return Counter()

    return {
        "scaled_dot_product_attention": attention,
        "baddbmm": baddbmm,
        **dict.fromkeys(("matmul", "mm", "mv", "dot"), product),
        **dict.fromkeys(_ESTIMATED, nothing),
    }

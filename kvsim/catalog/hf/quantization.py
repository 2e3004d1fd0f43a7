"""Element types of weights and KV cache: torch_dtype, quantization_config, hf_quant_config.json.

Group-quantized matrices take their bits and, per group, a 16-bit scale and (where the method has
one) a zero point of as many bits as an element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvsim.catalog.hf.fields import Fields, check_structure, shown

TORCH_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float32": "fp32",
}
FP8_METHODS = ("fp8", "fbgemm_fp8", "ptpc_fp8")
SUPPORTED = (
    "fp8, fbgemm_fp8, mxfp4, awq, gptq, bitsandbytes, compressed-tensors, modelopt, or no"
    " quantization_config"
)
MODELOPT_ALGOS: Mapping[str, tuple[str, int]] = {
    "FP8": ("fp8", 0),
    "FP8_PB_WO": ("fp8", 0),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", 0),
    "FP8_BLOCK_SCALES": ("fp8", 0),
    "NVFP4": ("nvfp4", 0),
    "NVFP4_AWQ": ("nvfp4", 0),
    "W4A16_NVFP4": ("nvfp4", 0),
    "MXFP8": ("mxfp8", 0),
    "W4A16_MXFP4": ("mxfp4", 0),
    "W4A16_AWQ": ("int4", 128),
    "W4A8_AWQ": ("int4", 128),
    "W8A8_SQ_PER_CHANNEL": ("int8", 0),
    "INT8": ("int8", 0),
}
"""quant_algo -> element type and elements per 16-bit scale (0: per channel or in the type)."""
ONE_BYTE_KV = ("fp8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "int8")
TWO_BYTE_KV = ("auto", "bfloat16", "float16", "none")
ATTENTION_WORDS = ("self_attn", "attn", "attention")
EXCEPTION_LISTS = (
    "ignore",
    "modules_to_not_convert",
    "exclude_modules",
    "llm_int8_skip_modules",
    "ignored_layers",
)
"""Where the methods list the matrices that they leave in 16 bits."""


@dataclass(frozen=True, slots=True)
class ElementTypes:
    """How matrices and KV cache are stored."""

    weight_dtype: str
    kv_dtype_bytes: int
    scale_bytes: float = 0.0
    """Bytes of scales and zero points per element."""
    attention_dtype: str | None = None
    """Where the attention's matrices keep another type."""
    expert_dtype: str | None = None
    """Where the experts alone are quantized."""
    shared_expert_dtype: str | None = None
    """Where shared experts keep another type than routed ones."""
    assumptions: tuple[str, ...] = ()


def element_types(fields: Fields, quantization: Mapping[str, Any] | None) -> ElementTypes:
    """The types a model is stored in. `quantization` is the content of hf_quant_config.json.

    Raises `InputError` for a type or method that is not known.
    """
    base = torch_dtype(fields)
    plain = ElementTypes(base, 4 if base == "fp32" else 2)
    given = fields.get("quantization_config")
    if given is None:
        given = fields.get("compression_config")
    if quantization is not None:
        check_structure(quantization, fields.source)
        inner = quantization.get("quantization", quantization)
        if not isinstance(inner, Mapping):
            raise fields.error(f"quantization must be an object, got {shown(inner)}")
        merged = dict(given) if isinstance(given, Mapping) else {}
        if merged.get("quant_method") not in (None, "modelopt", *FP8_METHODS):
            raise fields.error(
                f"quant_method {shown(merged['quant_method'])} contradicts hf_quant_config.json",
                "Keep one of them",
            )
        merged.update({key: value for key, value in inner.items() if value is not None})
        return _modelopt(Fields(merged, fields.source, fields.kind), plain)
    if given is None:
        return plain
    if not isinstance(given, Mapping):
        raise fields.error(f"quantization_config must be an object, got {shown(given)}")
    return _by_method(Fields(given, fields.source, fields.kind), plain)


def torch_dtype(fields: Fields) -> str:
    """`torch_dtype`, which newer files call `dtype`; 16 bits where neither is given.

    Files without it are from the time of 32-bit checkpoints, which servers load in 16 bits.
    `InputError` when they contradict each other.
    """
    old, new = fields.get("torch_dtype"), fields.get("dtype")
    if old is not None and new is not None and old != new:
        raise fields.error(
            f"torch_dtype {shown(old)} contradicts dtype {shown(new)}", "Keep one of them"
        )
    dtype = new if old is None else old
    if dtype is None:
        return "bf16"
    if not isinstance(dtype, str) or dtype not in TORCH_DTYPES:
        known = ", ".join(TORCH_DTYPES)
        raise fields.error(f"torch_dtype {shown(dtype)} is not known", f"Known: {known}")
    return TORCH_DTYPES[dtype]


def _by_method(given: Fields, plain: ElementTypes) -> ElementTypes:
    method = given.get("quant_method")
    if method is None and given.get("quant_algo") is not None:
        method = "modelopt"
    if method == "mxfp4" and given.kind == "gpt_oss":
        return replace(plain, expert_dtype="mxfp4")
    if method in FP8_METHODS:
        return _kept(given, replace(plain, weight_dtype="fp8"))
    if method in ("awq", "gptq", "auto-round", "intel/auto-round"):
        return _grouped(given, plain, str(method))
    if method == "bitsandbytes":
        return _bitsandbytes(given, plain)
    if method == "compressed-tensors":
        return _compressed(given, plain)
    if method in ("modelopt", "modelopt_fp4", "modelopt_mixed"):
        return _modelopt(given, plain)
    raise given.error(
        f"quant_method {shown(method)} is not supported yet", f"Supported: {SUPPORTED}"
    )


def _grouped(given: Fields, plain: ElementTypes, method: str) -> ElementTypes:
    """awq and gptq: `bits` per element, a scale and a zero point per group."""
    key = "w_bit" if given.has("w_bit") else "bits"
    bits = given.count(key, 4 if method == "awq" else None, most=8)
    dtype = _integer(given, key, bits)
    size = given.get("q_group_size" if given.has("q_group_size") else "group_size")
    size = 128 if size is None else size
    if size == -1:
        return _kept(given, replace(plain, weight_dtype=dtype))
    if type(size) is not int or not 1 <= size <= 1_000_000:
        raise given.error(f"group_size must be a whole number or -1, got {shown(size)}")
    # Checkpoints hold zero points even where the method is symmetric.
    scale = (2 + bits / 8) / size
    return _kept(given, replace(plain, weight_dtype=dtype, scale_bytes=scale))


def _integer(given: Fields, key: str, bits: int) -> str:
    if bits not in (2, 3, 4, 5, 6, 8):
        raise given.error(f"{key} {bits} is not supported", "Supported: 2, 3, 4, 5, 6 and 8 bits")
    return f"int{bits}"


def _bitsandbytes(given: Fields, plain: ElementTypes) -> ElementTypes:
    """8 bits, or 4 bits with a 32-bit scale per 64 elements, 8 bits when scales are quantized."""
    four = given.flag("load_in_4bit") or given.flag("_load_in_4bit")
    eight = given.flag("load_in_8bit") or given.flag("_load_in_8bit")
    if four == eight:
        raise given.error(
            "quantization_config must set one of load_in_4bit and load_in_8bit", "Set one"
        )
    if eight:
        return _kept(given, replace(plain, weight_dtype="int8"))
    double = given.flag("bnb_4bit_use_double_quant")
    scale = (1 + 4 / 256) / 64 if double else 4 / 64
    return _kept(given, replace(plain, weight_dtype="nf4", scale_bytes=scale))


def _compressed(given: Fields, plain: ElementTypes) -> ElementTypes:
    """compressed-tensors: `config_groups` say bits and groups, else `format` does."""
    types = replace(plain, kv_dtype_bytes=_kv_bytes(given, plain.kv_dtype_bytes))
    groups = given.get("config_groups")
    if not groups:
        return _kept(given, _by_format(given, types))
    if not isinstance(groups, Mapping):
        raise given.error(f"config_groups must be an object, got {shown(groups)}")
    found: list[tuple[float, str, float]] = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise given.error(f"weights of config_groups must be objects, got {shown(weights)}")
        found.append(_scheme(Fields(weights, given.source, given.kind)))
    if len({one[1:] for one in found}) > 1:
        largest = max(found)
        note = "matrices have several types (config_groups): all are counted as the largest"
        types = replace(types, assumptions=(*types.assumptions, note))
        found = [largest]
    _, dtype, scale = found[0]
    return _kept(given, replace(types, weight_dtype=dtype, scale_bytes=scale))


def _scheme(weights: Fields) -> tuple[float, str, float]:
    """Bits, element type and scale bytes per element of one group of matrices."""
    bits = weights.count("num_bits", most=16)
    kind = weights.text("type") or "int"
    size = weights.get("group_size")
    if size is not None and (type(size) is not int or not -1 <= size <= 1_000_000 or size == 0):
        raise weights.error(f"group_size must be a whole number, got {shown(size)}")
    grouped = size is not None and size > 0
    if kind == "float" and bits == 8:
        return (8, "mxfp8", 0.0) if grouped and size == 32 else (8, "fp8", 0.0)
    if kind == "float" and bits == 4:
        return (4.25, "mxfp4", 0.0) if size == 32 else (4.5, "nvfp4", 0.0)
    if kind != "int":
        raise weights.error(f"type {shown(kind)} of {bits} bits is not supported")
    zero = 0.0 if weights.flag("symmetric", default=True) else bits / 8
    scale = (2 + zero) / size if size is not None and size > 0 else 0.0
    return bits, _integer(weights, "num_bits", bits), scale


def _by_format(given: Fields, types: ElementTypes) -> ElementTypes:
    known = {
        "float-quantized": ("fp8", ""),
        "naive-quantized": ("fp8", "8 bits are counted: config_groups is missing"),
        "int-quantized": ("int8", ""),
        "nvfp4-pack-quantized": ("nvfp4", ""),
        "mxfp4-pack-quantized": ("mxfp4", ""),
        "mxfp8-quantized": ("mxfp8", ""),
        "pack-quantized": ("int4", "4 bits are counted: config_groups is missing"),
    }
    name = given.text("format")
    if name not in known:
        raise given.error(f"format {shown(name)} of compressed-tensors is not supported")
    dtype, note = known[name]
    return replace(types, weight_dtype=dtype, assumptions=(note,) if note else ())


def _modelopt(given: Fields, plain: ElementTypes) -> ElementTypes:
    algo = given.text("quant_algo")
    types = replace(plain, kv_dtype_bytes=_kv_bytes(given, plain.kv_dtype_bytes))
    if algo is None:
        return types
    if algo == "MIXED_PRECISION":
        return _mixed(given, types)
    if algo not in MODELOPT_ALGOS:
        raise given.error(
            f"quant_algo {shown(algo)} is not supported yet",
            f"Supported: {', '.join(MODELOPT_ALGOS)}, MIXED_PRECISION",
        )
    dtype, size = MODELOPT_ALGOS[algo]
    size = given.count("group_size", size) if size else 0
    scale = 2 / size if size else 0.0
    return _kept(given, replace(types, weight_dtype=dtype, scale_bytes=scale))


def _mixed(given: Fields, types: ElementTypes) -> ElementTypes:
    """`quantized_layers` names the type of each matrix; without it 16 bits are counted."""
    layers = given.get("quantized_layers")
    if not isinstance(layers, Mapping) or not layers:
        note = (
            "MIXED_PRECISION without quantized_layers: matrices are counted in 16 bits, an upper"
            " bound of their bytes"
        )
        return replace(types, assumptions=(*types.assumptions, note))
    algos: dict[bool, set[str]] = {False: set(), True: set()}
    for name, one in layers.items():
        algo = one.get("quant_algo") if isinstance(one, Mapping) else None
        if not isinstance(algo, str) or algo not in MODELOPT_ALGOS:
            raise given.error(f"quant_algo {shown(algo)} is not supported yet")
        algos["expert" in str(name)].add(MODELOPT_ALGOS[algo][0])
    order = ("mxfp8", "fp8", "int8", "nvfp4", "mxfp4", "int4")
    expert, rest = (
        next((one for one in order if one in algos[is_expert]), None) for is_expert in (True, False)
    )
    attention = None
    if not any(_is_attention(str(name)) for name in layers):
        attention = types.weight_dtype
    base = rest or types.weight_dtype
    return replace(types, weight_dtype=base, attention_dtype=attention, expert_dtype=expert)


def _kv_bytes(given: Fields, default: int) -> int:
    """Bytes per element of the cache: `kv_cache_scheme` or `kv_cache_quant_algo`."""
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        value = given.get(key)
        if value is None:
            continue
        if isinstance(value, Mapping):
            bits = value.get("num_bits")
            if type(bits) is not int or bits not in (8, 16):
                raise given.error(
                    f"num_bits {shown(bits)} of {key} is not supported", "Supported: 8 and 16"
                )
            return bits // 8
        if isinstance(value, str) and value.lower() in ONE_BYTE_KV:
            return 1
        if isinstance(value, str) and value.lower() in TWO_BYTE_KV:
            return default
        raise given.error(f"{key} {shown(value)} is not supported", "Supported: FP8 and INT8")
    return default


def _kept(given: Fields, types: ElementTypes) -> ElementTypes:
    """With attention and shared experts in 16 bits where the list of exceptions names them."""
    listed: list[str] = []
    for key in EXCEPTION_LISTS:
        value = given.get(key)
        if value is None:
            continue
        if not isinstance(value, list):
            raise given.error(f"{key} must be a list, got {shown(value)}")
        listed += [str(one) for one in value]
    patterns = [one for one in listed if not _has_layer_number(one)]
    if any(_ends_in_attention(one) for one in patterns):
        types = replace(types, attention_dtype="bf16")
    if any("shared_expert" in one and "gate" not in one for one in patterns):
        types = replace(types, shared_expert_dtype="bf16")
    return types


def _has_layer_number(name: str) -> bool:
    return any(part.isdigit() for part in name.replace("*", ".").split("."))


def _ends_in_attention(name: str) -> bool:
    """Whether a pattern names the language model's attention with all its projections."""
    last = name.rstrip("*.").rsplit(".", 1)[-1]
    return _is_attention(last) and "vision" not in name and "visual" not in name


def _is_attention(name: str) -> bool:
    return any(word in name for word in ATTENTION_WORDS)

"""Writes the rows of public start-up logs in the wordings of the release each row names."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
Expected = dict[str, float]

REFUSED_LEN = "max_len_gt_kv_tokens"
REFUSED_NEED = "need_gt_available"
REFUSED_OOM = "oom_after_kv_alloc"


def gib(value: float) -> str:
    """As the servers print sizes: two decimals, or all that the row has if more."""
    text = repr(float(value))
    return text if len(text.partition(".")[2]) > 2 else f"{value:.2f}"


def render(row: Row) -> tuple[list[str], Expected]:
    """The lines of a log and the figures that it prints."""
    if row["server"] == "vllm":
        return _vllm_v0(row) if row["engine"] == "v0" else _vllm_v1(row)
    return {"sglang": _sglang, "tensorrt-llm": _tensorrt, "llama.cpp": _llama}[row["server"]](row)


def _release(row: Row) -> tuple[int, int]:
    """Major and minor with the patch in the second for 0.6 and 0.7: (6, 4) is 0.6.4."""
    digits = "".join(c if c.isdigit() else " " for c in row.get("version", "")).split()
    numbers = [int(d) for d in digits]
    if len(numbers) >= 2 and numbers[0] == 0:
        return numbers[1], numbers[2] if len(numbers) > 2 else 0
    return (8, 5) if row.get("engine") == "v0" else (19, 0)


def vllm_config(row: Row) -> str:
    """The engine's banner from "model=" on."""
    dtype = {"bf16": "bfloat16"}.get(row.get("dtype", ""), "float16")
    quantization = row.get("quantization")
    return (
        f"model='{row['model']}', speculative_config=None, tokenizer='{row['model']}', "
        f"trust_remote_code=False, dtype=torch.{dtype}, "
        f"max_seq_len={row.get('max_model_len', 4096)}, download_dir=None, "
        f"tensor_parallel_size={row['tp']}, pipeline_parallel_size={row.get('pp', 1)}, "
        f"quantization={quantization}, enforce_eager={row.get('enforce_eager', False)}, "
        f"kv_cache_dtype={row.get('kv_cache_dtype', 'auto')}, "
        "compilation_config={'level': 3, 'sizes': [1, 2, 4]}, use_cached_outputs=False, "
    )


def _vllm_arguments(row: Row) -> list[tuple[str, Any]]:
    names = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "block_size")
    return [("model", row["model"]), *((n, row[n]) for n in names if n in row)]


def _take(row: Row, *names: str) -> Expected:
    return {name: row[name] for name in names if name in row}


def _vllm_v0(row: Row) -> tuple[list[str], Expected]:
    release = _release(row)
    at = "INFO 01-02 03:04:05 "
    namespace = ", ".join(f"{name}={value!r}" for name, value in _vllm_arguments(row))
    version = f" (v0.{release[0]}.{release[1]})" if release >= (4, 0) else ""
    article = "a V0" if release >= (7, 3) else "an"
    lines = [
        at + f"api_server.py:219] args: Namespace(host=None, port=8000, {namespace})",
        at
        + f"llm_engine.py:98] Initializing {article} LLM engine{version} with config: "
        + vllm_config(row),
    ]
    seen = _take(row, "num_gpu_blocks", "num_cpu_blocks", "max_concurrency", "cudagraph_gib")
    if "weights_gib" in row:
        seen |= _take(row, "weights_gib")
        weights = f"{row['weights_gib']:.4f}"
        took = "Model loading took" if release >= (8, 0) else "Loading model weights took"
        lines.append(at + f"model_runner.py:1072] {took} {weights} GB")
    profile, of_profile = _v0_profile(row, release, at)
    lines += profile
    seen |= of_profile
    if "num_gpu_blocks" in row:
        device = "cuda" if release >= (8, 0) else "CUDA" if release >= (7, 1) else "GPU"
        blocks = f"# {device} blocks: {row['num_gpu_blocks']}"
        if "num_cpu_blocks" in row:
            blocks += f", # CPU blocks: {row['num_cpu_blocks']}"
        else:
            blocks = f"# GPU blocks: {row['num_gpu_blocks']}"
        lines.append(at + f"executor_base.py:110] {blocks}")
    if "max_concurrency" in row:
        lines.append(
            at + f"executor_base.py:115] Maximum concurrency for {row['max_model_len']} "
            f"tokens per request: {row['max_concurrency']:.2f}x"
        )
    if row.get("error_class") == REFUSED_LEN:
        seen |= _take(row, "kv_tokens")
        limit = row.get("max_model_len", 16384)
        lines.append(
            f"ValueError: The model's max seq len ({limit}) is larger than the maximum number of "
            f"tokens that can be stored in KV cache ({row['kv_tokens']}). Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    if "cudagraph_gib" in row:
        lines.append(
            at + "model_runner.py:1562] Graph capturing finished in 21 secs, took "
            f"{row['cudagraph_gib']:.2f} GiB"
        )
    return lines, seen


def _v0_profile(row: Row, release: tuple[int, int], at: str) -> tuple[list[str], Expected]:
    if "available_kv_gib" not in row and "activation_peak_gib" not in row:
        return [], {}
    seen = _take(row, "non_torch_gib", "available_kv_gib", "activation_peak_gib")
    total = row.get("gpu_mem_gib_reported", 80.0)
    util = row.get("gpu_memory_utilization", 0.9)
    seen["gpu_mem_gib_reported"] = total
    if release < (6, 5):
        peak = row["weights_gib"] + row["activation_peak_gib"]
        pairs = (
            f"total_gpu_memory={total:.2f}GiB initial_memory_usage=15.49GiB "
            f"peak_torch_memory={peak:.2f}GiB memory_usage_post_profile=15.51GiB "
            f"non_torch_memory={row['non_torch_gib']:.2f}GiB "
            f"kv_cache_size={row['available_kv_gib']:.2f}GiB gpu_memory_utilization={util:.2f}"
        )
        return [at + "worker.py:232] Memory profiling results: " + pairs], seen
    seen["budget_gib"] = round(row.get("budget_gib", total * util), 2)
    parts = f"model weights take {row['weights_gib']:.2f}GiB; "
    parts += f"non_torch_memory takes {row['non_torch_gib']:.2f}GiB; "
    if "activation_peak_gib" in row:
        peak = row["activation_peak_gib"]
        parts += f"PyTorch activation peak memory takes {peak:.2f}GiB; "
    if "available_kv_gib" in row:
        left = row["available_kv_gib"]
        parts += f"the rest of the memory reserved for KV Cache is {left:.2f}GiB."
    where = "worker.py:267] "
    return [
        at + where + "Memory profiling takes 7.02 seconds",
        at + where + f"the current vLLM instance can use total_gpu_memory ({total:.2f}GiB) x "
        f"gpu_memory_utilization ({util:.2f}) = {seen['budget_gib']:.2f}GiB",
        at + where + parts,
    ], seen


def _vllm_v1(row: Row) -> tuple[list[str], Expected]:
    release = _release(row)
    core = "(EngineCore_DP0 pid=272) " if release >= (10, 2) else ""
    api = "(APIServer pid=1) " if release >= (10, 2) else ""
    at = "INFO 01-02 03:04:05 "
    version = f"0.{release[0]}.{release[1]}"
    arguments = repr(dict(_vllm_arguments(row)))
    lines = [
        f"{api}{at}[api_server.py:1839] vLLM API server version {version}",
        f"{api}{at}[utils.py:233] non-default args: {arguments}",
        f"{core}{at}[core.py:77] Initializing a V1 LLM engine (v{version}) with config: "
        + vllm_config(row),
    ]
    seen: Expected = {}

    def add(where: str, text: str, *names: str) -> None:
        if all(name in row for name in names):
            lines.append(f"{core}{at}[{where}] " + text.format(**row))
            seen.update(_take(row, *names))

    weights = gib(row["weights_gib"]) if "weights_gib" in row else ""
    unit = " GiB memory" if release >= (15, 0) else " GiB" if release >= (8, 3) else " GB"
    add("gpu_model_runner.py:2653", f"Model loading took {weights}{unit} and 3.1 s", "weights_gib")
    add(
        "gpu_model_runner.py:6142",
        "Estimated CUDA graph memory: {cudagraph_estimate_gib:.2f} GiB total",
        "cudagraph_estimate_gib",
    )
    if "needed_gib_one_request" not in row:
        add(
            "gpu_worker.py:298",
            "Available KV cache memory: {available_kv_gib:.2f} GiB",
            "available_kv_gib",
        )
    _v1_tokens(row, release, add)
    add(
        "gpu_model_runner.py:3480",
        "Graph capturing finished in 4 secs, took {cudagraph_gib:.2f} GiB",
        "cudagraph_gib",
    )
    _v1_debug(row, add, seen)
    add(
        "loggers.py:142",
        "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: "
        "{num_gpu_blocks}",
        "num_gpu_blocks",
    )
    _v1_refusal(row, release, add, lines)
    return lines, seen


def _v1_tokens(row: Row, release: tuple[int, int], add: Any) -> None:
    size = "GPU KV cache size: {kv_tokens:,} tokens"
    concurrency = "Maximum concurrency for {max_model_len:,} tokens per request: "
    concurrency += "{max_concurrency:.2f}x"
    together = ("kv_tokens", "max_model_len", "max_concurrency")
    if release >= (27, 0) and all(name in row for name in together):
        add("kv_cache_utils.py:2315", f"{size}, {concurrency}", *together[::2])
    else:
        add("kv_cache_utils.py:864", size, "kv_tokens")
        if "max_model_len" in row:
            add("kv_cache_utils.py:868", concurrency, "max_concurrency")
        else:
            add(
                "kv_cache_utils.py:868",
                "Maximum concurrency for 1,048,576 tokens per request: {max_concurrency:.2f}x",
                "max_concurrency",
            )


def _v1_debug(row: Row, add: Any, seen: Expected) -> None:
    if "budget_gib" in row and "gpu_mem_gib_reported" in row:
        add(
            "gpu_worker.py:459",
            "Free memory on device (11.5/{gpu_mem_gib_reported} GiB) on startup. Desired GPU "
            "memory utilization is ({gpu_memory_utilization}, {budget_gib:.2f} GiB).",
            "gpu_mem_gib_reported",
        )
        seen["budget_gib"] = round(row["budget_gib"], 2)
    if "non_torch_gib" in row and "activation_peak_gib" in row:
        graphs = row.get("cudagraph_gib", 0.0)
        add(
            "gpu_worker.py:460",
            "Actual usage is {weights_gib} GiB for weight, {activation_peak_gib} GiB for peak "
            f"activation, {{non_torch_gib}} GiB for non-torch memory, and {graphs} GiB for "
            "CUDAGraph memory. Replace gpu_memory_utilization config with "
            "`--kv-cache-memory=20000000000` (18.63 GiB) to fit into requested memory.",
            "non_torch_gib",
            "activation_peak_gib",
        )


def _v1_refusal(row: Row, release: tuple[int, int], add: Any, lines: list[str]) -> None:
    kind = row.get("error_class")
    if kind == REFUSED_NEED:
        names = ["needed_gib_one_request", "available_kv_gib"]
        unit = "GiB" if release >= (8, 4) else "GB"
        text = (
            "ValueError: To serve at least one request with the models's max seq len "
            f"({{max_model_len}}), ({{needed_gib_one_request:.2f}} {unit} KV cache is needed, "
            f"which is larger than the available KV cache memory ({{available_kv_gib:.2f}} {unit})"
            ". "
        )
        if "estimated_max_len" in row:
            names.append("estimated_max_len")
            text += (
                "Based on the available memory, the estimated maximum model length is "
                "{estimated_max_len}. "
            )
        add("core.py:708", text + "Try increasing `gpu_memory_utilization`.", *names)
    if kind == REFUSED_OOM:
        lines.append(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a "
            f"total capacity of {row['gpu_mem_gib_reported']} GiB of which 100.50 MiB is free."
        )


def _sglang(row: Row) -> tuple[list[str], Expected]:
    at = "[2026-03-01 10:10:18 TP0]" if row["tp"] > 1 else "[2026-03-01 10:10:18]"
    util = row.get("gpu_memory_utilization", 0.88)
    lines = [
        f"[2026-03-01 10:10:00] server_args=ServerArgs(model_path='{row['model']}', "
        f"tp_size={row['tp']}, dp_size={row.get('dp', 1)}, mem_fraction_static={util}, "
        f"max_running_requests={row.get('max_num_seqs')}, page_size={row['block_size']}, "
        f"quantization={row.get('quantization')!r}, disable_radix_cache=False)"
    ]
    if "weights_gib" in row:
        lines.append(
            f"{at} Load weight end. elapsed=61.04 s, type=AForCausalLM, dtype=torch.bfloat16, "
            f"avail mem=209.98 GB, mem usage={row['weights_gib']:.2f} GB."
        )
    if any(name in row["model"] for name in ("DeepSeek", "Kimi")):  # one latent instead of K and V
        sizes = f"KV size: {row['kv_size_gib']:.2f} GB"
    else:
        half = row["kv_size_gib"] / 2
        sizes = f"K size: {half:.2f} GB, V size: {half:.2f} GB"
    lines += [
        f"{at} KV Cache is allocated. #tokens: {row['kv_tokens']}, {sizes}",
        f"{at} Memory pool end. avail mem=45.25 GB",
    ]
    return lines, _take(row, "weights_gib", "kv_size_gib", "kv_tokens")


def _tensorrt(row: Row) -> tuple[list[str], Expected]:
    at = "[TensorRT-LLM][INFO] "
    if "kv_size_gib" not in row:
        return [f"{at}Using {row['kv_tokens']} tokens in paged KV cache."], _take(row, "kv_tokens")
    block = row.get("block_size", 32)
    lines = [
        f"{at}Number of tokens per block: {block}.",
        f"{at}[MemUsageChange] Allocated 8.01 GiB for max tokens in paged KV cache (8224).",
    ]
    if "num_gpu_blocks" in row:
        lines.append(
            f"{at}Max KV cache blocks per sequence: 65 [window size=2049], tokens per "
            f"block={block}, primary blocks={row['num_gpu_blocks']}, secondary blocks=0, "
            "max sequence length=2049"
        )
    lines.append(
        f"{at}[MemUsageChange] Allocated {row['kv_size_gib']:.2f} GiB for max tokens in paged KV "
        f"cache ({row.get('kv_tokens', 52000)})."
    )
    return lines, _take(row, "kv_size_gib", "kv_tokens", "num_gpu_blocks")


def _llama(row: Row) -> tuple[list[str], Expected]:
    cells, kind = row["max_model_len"], row["kv_cache_dtype"]
    size = row["kv_size_gib"] * 1024
    if cells == 512:  # the releases of 2023
        lines = [
            f"llama_model_load_internal: n_ctx      = {cells}",
            f"llama_init_from_file: kv self size  = {size:7.2f} MB",
        ]
        return lines, _take(row, "kv_size_gib")
    lines = [
        "llama_context: constructing llama_context",
        f"llama_context: n_ctx         = {cells}",
        "llama_context: n_ubatch      = 512",
    ]

    def pool(cells: int, mib: float) -> str:
        return (
            f"llama_kv_cache: size = {mib:7.2f} MiB ({cells:6d} cells, {32:3d} layers,  1/1 seqs), "
            f"K ({kind}): {mib / 2:7.2f} MiB, V ({kind}): {mib / 2:7.2f} MiB"
        )

    if row["model"] != "gpt-oss-20b":
        return [*lines, pool(cells, size)], _take(row, "kv_size_gib", "kv_tokens")
    # The row's size is of the full layers; its note gives the 768 cells of the windowed ones.
    lines += [
        f"llama_kv_cache_iswa: creating non-SWA KV cache, size = {cells} cells",
        pool(cells, size),
        "llama_kv_cache_iswa: creating     SWA KV cache, size = 768 cells",
        pool(768, 18.0),
    ]
    seen = {"kv_full_gib": row["kv_size_gib"], "kv_swa_gib": 18 / 1024}
    return lines, seen | {"kv_size_gib": 3090 / 1024, "kv_tokens": row["kv_tokens"]}

"""vLLM start-ups written for the tests, one per wording; name: lines, and what they say."""

# ruff: noqa: E501 (a server's line is as long as it is)

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A log and what a reader must find in it."""

    text: str
    version: str | None
    engine: str | None
    figures: dict[str, float]
    settings: dict[str, Any]
    refusal: str | None = None


V0: dict[str, Case] = {
    "0.2: no version, no weights, no profile": Case(
        """\
INFO 12-20 09:01:02 llm_engine.py:73] Initializing an LLM engine with config: model='mixtral-awq', tokenizer='mixtral-awq', tokenizer_mode=auto, revision=None, trust_remote_code=False, dtype=torch.float16, max_seq_len=32768, download_dir=None, load_format=auto, tensor_parallel_size=2, quantization=awq, enforce_eager=True, seed=0)
INFO 12-20 09:03:11 llm_engine.py:223] # GPU blocks: 6487, # CPU blocks: 4096
""",
        None,
        "v0",
        {"num_gpu_blocks": 6487, "num_cpu_blocks": 4096},
        {
            "model": "mixtral-awq",
            "dtype": "float16",
            "quantization": "awq",
            "tensor_parallel_size": 2,
            "max_model_len": 32768,
            "enforce_eager": True,
        },
    ),
    "0.4: refused, window over the pool": Case(
        """\
INFO 04-11 08:00:01 llm_engine.py:80] Initializing an LLM engine (v0.4.0.post1) with config: model='deepseek-coder', speculative_config=None, dtype=torch.float16, max_seq_len=16384, tensor_parallel_size=2, disable_custom_all_reduce=False, quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda)
INFO 04-05 23:50:01 model_runner.py:104] Loading model weights took 6.2819 GB
INFO 04-05 23:50:09 ray_gpu_executor.py:240] # GPU blocks: 507, # CPU blocks: 1024
ValueError: The model's max seq len (16384) is larger than the maximum number of tokens that can be stored in KV cache (8112). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.
""",
        "0.4.0.post1",
        "v0",
        {"weights_gib": 6.2819, "num_gpu_blocks": 507, "num_cpu_blocks": 1024, "kv_tokens": 8112},
        {"max_model_len": 16384, "quantization": None, "kv_cache_dtype": "auto"},
        "max_len_gt_kv_tokens",
    ),
    "0.5: arguments as a namespace": Case(
        """\
INFO 07-24 10:00:00 api_server.py:219] vLLM API server version 0.5.3.post1
INFO 07-24 10:00:00 api_server.py:220] args: Namespace(host=None, port=8000, allowed_origins=['*'], lora_modules=None, model='llama-405b-fp8', tokenizer=None, dtype='auto', kv_cache_dtype='auto', max_model_len=None, tensor_parallel_size=8, block_size=16, swap_space=4.0, gpu_memory_utilization=0.9, max_num_batched_tokens=None, max_num_seqs=256, enforce_eager=False, speculative_model=None)
INFO 07-24 10:00:20 llm_engine.py:176] Initializing an LLM engine (v0.5.3.post1) with config: model='llama-405b-fp8', speculative_config=None, dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=8, pipeline_parallel_size=1, quantization=fbgemm_fp8, enforce_eager=False, kv_cache_dtype=auto, use_v2_block_manager=False, enable_prefix_caching=False)
INFO 07-24 10:10:00 model_runner.py:692] Loading model weights took 57.7520 GB
INFO 07-24 10:10:30 distributed_gpu_executor.py:56] # GPU blocks: 4962, # CPU blocks: 2080
""",
        "0.5.3.post1",
        "v0",
        {"weights_gib": 57.752, "num_gpu_blocks": 4962, "num_cpu_blocks": 2080},
        {
            "max_model_len": 131072,
            "swap_space": 4.0,
            "gpu_memory_utilization": 0.9,
            "max_num_seqs": 256,
            "block_size": 16,
            "quantization": "fbgemm_fp8",
            "enable_prefix_caching": False,
        },
    ),
    "0.6.4: profile as pairs with spaces": Case(
        """\
INFO 11-21 03:04:05 llm_engine.py:249] Initializing an LLM engine (v0.6.4.post1) with config: model='llama-3.1-8b', speculative_config=None, dtype=torch.bfloat16, max_seq_len=20000, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, chunked_prefill_enabled=False)
INFO 11-21 03:05:05 model_runner.py:1072] Loading model weights took 14.9888 GB
INFO 11-21 03:05:25 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.49GiB peak_torch_memory=17.06GiB memory_usage_post_profile=15.51GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90
INFO 11-21 03:05:26 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048
INFO 11-21 03:05:26 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x
""",
        "0.6.4.post1",
        "v0",
        {
            "weights_gib": 14.9888,
            "gpu_mem_gib_reported": 23.58,
            "peak_torch_gib": 17.06,
            "activation_peak_gib": 2.0712,
            "non_torch_gib": 0.35,
            "available_kv_gib": 3.81,
            "num_gpu_blocks": 1952,
            "num_cpu_blocks": 2048,
            "max_concurrency": 1.56,
        },
        {"gpu_memory_utilization": 0.9, "enable_chunked_prefill": False, "max_model_len": 20000},
    ),
    "0.6.5: profile as pairs with commas": Case(
        """\
INFO 12-30 10:00:10 model_runner.py:1094] Loading model weights took 8.5088 GB
INFO 12-30 10:00:20 worker.py:241] Memory profiling results: duration=9.75 seconds, total_gpu_memory=79.25GiB, initial_memory_usage=9.10GiB, peak_torch_memory=9.45GiB, memory_usage_post_profile=9.16GiB, non_torch_memory=0.26GiB, kv_cache_size=2.18GiB, gpu_memory_utilization=0.15.
INFO 12-30 10:00:20 gpu_executor.py:76] # GPU blocks: 715, # CPU blocks: 1310
INFO 12-30 10:00:20 gpu_executor.py:80] Maximum concurrency for 2048 tokens per request: 5.59x
""",
        None,
        "v0",
        {
            "weights_gib": 8.5088,
            "peak_torch_gib": 9.45,
            "activation_peak_gib": 0.9412,
            "non_torch_gib": 0.26,
            "available_kv_gib": 2.18,
            "num_gpu_blocks": 715,
            "num_cpu_blocks": 1310,
            "max_concurrency": 5.59,
        },
        {"gpu_memory_utilization": 0.15, "max_model_len": 2048},
    ),
    "0.6.6: profile as a sentence": Case(
        """\
INFO 01-09 01:02:03 worker.py:241] Memory profiling takes 7.30 seconds
INFO 01-09 01:02:03 worker.py:241] the current vLLM instance can use total_gpu_memory (23.67GiB) x gpu_memory_utilization (0.90) = 21.30GiB
INFO 01-09 01:02:03 worker.py:241] model weights take 15.51GiB; non_torch_memory takes 0.28GiB; PyTorch activation peak memory takes 1.16GiB; the rest of the memory reserved for KV Cache is 4.36GiB.
INFO 01-09 01:02:03 gpu_executor.py:76] # GPU blocks: 5102, # CPU blocks: 4681
INFO 01-09 01:02:03 gpu_executor.py:80] Maximum concurrency for 8192 tokens per request: 9.96x
""",
        None,
        "v0",
        {
            "weights_gib": 15.51,
            "non_torch_gib": 0.28,
            "activation_peak_gib": 1.16,
            "available_kv_gib": 4.36,
            "budget_gib": 21.3,
            "gpu_mem_gib_reported": 23.67,
            "num_gpu_blocks": 5102,
            "num_cpu_blocks": 4681,
            "max_concurrency": 9.96,
        },
        {"gpu_memory_utilization": 0.9, "max_model_len": 8192},
    ),
    "0.7.2: CUDA blocks and graphs": Case(
        """\
INFO 02-20 11:00:00 model_runner.py:1115] Loading model weights took 14.2717 GB
INFO 02-20 11:00:08 worker.py:267] the current vLLM instance can use total_gpu_memory (31.74GiB) x gpu_memory_utilization (0.90) = 28.57GiB
INFO 02-20 11:00:08 worker.py:267] model weights take 14.27GiB; non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 1.40GiB; the rest of the memory reserved for KV Cache is 12.80GiB.
INFO 02-20 11:00:09 executor_base.py:110] # CUDA blocks: 14984, # CPU blocks: 4681
INFO 02-20 11:00:09 executor_base.py:115] Maximum concurrency for 2048 tokens per request: 117.06x
INFO 02-20 11:00:33 model_runner.py:1562] Graph capturing finished in 21 secs, took 0.80 GiB
""",
        None,
        "v0",
        {
            "weights_gib": 14.2717,
            "activation_peak_gib": 1.4,
            "available_kv_gib": 12.8,
            "num_gpu_blocks": 14984,
            "num_cpu_blocks": 4681,
            "max_concurrency": 117.06,
            "cudagraph_gib": 0.8,
        },
        {"max_model_len": 2048},
    ),
    "0.8: V0 by name, cuda blocks": Case(
        """\
INFO 04-01 11:00:00 [llm_engine.py:241] Initializing a V0 LLM engine (v0.8.5) with config: model='qwen3-4b', speculative_config=SpeculativeConfig(model='draft', num_spec_tokens=5), dtype=torch.bfloat16, max_seq_len=10000, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=fp8_e5m2, use_cached_outputs=False,
INFO 04-01 11:00:09 [model_runner.py:1140] Model loading took 7.5552 GiB and 2.180512 seconds
INFO 04-01 11:00:18 [worker.py:287] the current vLLM instance can use total_gpu_memory (12.00GiB) x gpu_memory_utilization (0.95) = 11.40GiB
INFO 04-01 11:00:18 [worker.py:287] model weights take 7.56GiB; non_torch_memory takes 0.04GiB; PyTorch activation peak memory takes 0.74GiB; the rest of the memory reserved for KV Cache is 3.06GiB.
INFO 04-01 11:00:18 [executor_base.py:112] # cuda blocks: 1394, # CPU blocks: 1820
INFO 04-01 11:00:18 [executor_base.py:117] Maximum concurrency for 10000 tokens per request: 2.23x
""",
        "0.8.5",
        "v0",
        {"weights_gib": 7.5552, "non_torch_gib": 0.04, "num_gpu_blocks": 1394},
        {
            "speculative_config": "SpeculativeConfig(model='draft', num_spec_tokens=5)",
            "kv_cache_dtype": "fp8_e5m2",
        },
    ),
    "a pool below zero": Case(
        """\
INFO 03-01 01:01:01 worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.90) = 7.20GiB
INFO 03-01 01:01:01 worker.py:267] model weights take 6.50GiB; non_torch_memory takes -0.20GiB; PyTorch activation peak memory takes 1.50GiB; the rest of the memory reserved for KV Cache is -0.60GiB.
INFO 03-01 01:01:01 executor_base.py:110] # cuda blocks: 0, # CPU blocks: 2340
INFO 03-01 01:01:01 executor_base.py:115] Maximum concurrency for 5000 tokens per request: 0.00x
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
""",
        None,
        "v0",
        {"non_torch_gib": -0.2, "available_kv_gib": -0.6, "num_gpu_blocks": 0},
        {"max_model_len": 5000},
        "no_available_memory",
    ),
}

V1: dict[str, Case] = {
    "0.7.3: V1 with only GPU blocks": Case(
        """\
INFO 03-09 07:07:07 core.py:50] Initializing a V1 LLM engine (v0.7.3) with config: model='qwen2.5-7b', speculative_config=None, dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto,
INFO 03-07 05:59:12 gpu_model_runner.py:1060] Loading model weights took 14.2488 GB
INFO 03-07 05:59:44 kv_cache_utils.py:524] # GPU blocks: 21504
INFO 03-07 05:59:44 kv_cache_utils.py:527] Maximum concurrency for 4096 tokens per request: 84.00x
INFO 03-07 06:00:01 gpu_model_runner.py:1339] Graph capturing finished in 17 secs, took 0.47 GiB
""",
        "0.7.3",
        "v1",
        {
            "weights_gib": 14.2488,
            "num_gpu_blocks": 21504,
            "max_concurrency": 84.0,
            "cudagraph_gib": 0.47,
        },
        {"max_model_len": 4096},
    ),
    "0.8.3: refused, sizes called GB": Case(
        """\
INFO 04-07 05:59:12 [gpu_model_runner.py:1258] Model loading took 28.3300 GB and 41.523 seconds
ERROR 04-07 06:00:12 [core.py:390] ValueError: To serve at least one request with the models's max seq len (1048576), (24.00 GB KV cache is needed, which is larger than the available KV cache memory (9.97 GB). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.
""",
        None,
        None,
        {"weights_gib": 28.33, "needed_gib_one_request": 24.0, "available_kv_gib": 9.97},
        {"max_model_len": 1048576},
        "need_gt_available",
    ),
    "0.8.4: no available memory line yet": Case(
        """\
INFO 05-01 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.8.4) with config: model='llama-3.1-8b', speculative_config=None, dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto,
INFO 05-01 10:00:09 [gpu_model_runner.py:1276] Model loading took 14.9889 GiB and 3.110 seconds
INFO 05-01 10:00:30 [kv_cache_utils.py:634] GPU KV cache size: 158,656 tokens
INFO 05-01 10:00:30 [kv_cache_utils.py:637] Maximum concurrency for 32,768 tokens per request: 4.84x
""",
        "0.8.4",
        "v1",
        {"weights_gib": 14.9889, "kv_tokens": 158656, "max_concurrency": 4.84},
        {"max_model_len": 32768, "tensor_parallel_size": 1},
    ),
    "0.9.2: arguments as a dict, chunked prefill in passing": Case(
        """\
INFO 07-30 09:14:57 [api_server.py:1395] vLLM API server version 0.9.2
INFO 07-30 09:14:57 [cli_args.py:325] non-default args: {'model': 'qwen3-8b', 'served_model_name': ['a', 'b,c'], 'gpu_memory_utilization': 0.9, 'enable_prefix_caching': False, 'compilation_config': {'level': 3}, 'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3}}
INFO 07-30 09:15:04 [config.py:1472] Using max model len 40960
INFO 07-30 09:15:04 [config.py:2285] Chunked prefill is enabled with max_num_batched_tokens=2048.
INFO 07-30 09:15:09 [gpu_model_runner.py:1801] Model loading took 15.2683 GiB and 3.164322 seconds
INFO 07-30 09:15:40 [gpu_worker.py:232] Available KV cache memory: 18.69 GiB
INFO 07-30 09:15:40 [kv_cache_utils.py:716] GPU KV cache size: 136,080 tokens
INFO 07-30 09:15:40 [kv_cache_utils.py:720] Maximum concurrency for 40,960 tokens per request: 3.32x
INFO 07-30 09:16:01 [gpu_model_runner.py:2326] Graph capturing finished in 21 secs, took 2.24 GiB
INFO 07-30 09:16:01 [loggers.py:137] Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 8505
INFO:     Application startup complete.
""",
        "0.9.2",
        "v1",
        {
            "weights_gib": 15.2683,
            "available_kv_gib": 18.69,
            "kv_tokens": 136080,
            "max_concurrency": 3.32,
            "cudagraph_gib": 2.24,
            "num_gpu_blocks": 8505,
        },
        {
            "model": "qwen3-8b",
            "max_model_len": 40960,
            "max_num_batched_tokens": 2048,
            "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": False,
            "speculative_config": "{'method': 'eagle3', 'num_speculative_tokens': 3}",
        },
    ),
    "0.10.2: the profile at the debug level": Case(
        """\
(EngineCore_DP0 pid=4242) INFO 09-15 06:01:00 [v1/engine/core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='a', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1, quantization=fp8, enforce_eager=False,
(EngineCore_DP0 pid=4242) INFO 09-15 06:02:01 [v1/worker/gpu_model_runner.py:2653] Model loading took 27.7203 GiB and 51.5 seconds
(EngineCore_DP0 pid=4242) DEBUG 09-15 06:02:43 [v1/worker/gpu_worker.py:285] Initial free memory: 44.05 GiB; Requested memory: 0.90 (util), 39.98 GiB
(EngineCore_DP0 pid=4242) DEBUG 09-15 06:02:43 [v1/worker/gpu_worker.py:297] Memory profiling takes 12.25 seconds. Total non KV cache memory: 29.33GiB; torch peak memory increase: 1.40GiB; non-torch forward increase memory: 0.21GiB; weights memory: 27.72GiB.
(EngineCore_DP0 pid=4242) INFO 09-15 06:02:43 [v1/worker/gpu_worker.py:298] Available KV cache memory: 10.65 GiB
(EngineCore_DP0 pid=4242) INFO 09-15 06:02:44 [v1/core/kv_cache_utils.py:864] GPU KV cache size: 238,208 tokens
""",
        "0.10.2",
        "v1",
        {
            "weights_gib": 27.7203,
            "budget_gib": 39.98,
            "activation_peak_gib": 1.4,
            "non_torch_gib": 0.21,
            "available_kv_gib": 10.65,
            "kv_tokens": 238208,
        },
        {"gpu_memory_utilization": 0.9, "quantization": "fp8"},
    ),
    "0.11: usage after capture, a hybrid's block": Case(
        """\
(APIServer pid=1) INFO 10-09 11:26:26 [config.py:390] Setting attention block size to 544 tokens to ensure that attention page size is >= mamba page size.
(Worker_TP0 pid=514) INFO 10-09 11:28:26 [gpu_model_runner.py:2653] Model loading took 74.2812 GiB and 61.2 seconds
(Worker_TP0 pid=514) INFO 10-09 11:28:56 [gpu_worker.py:298] Available KV cache memory: 44.59 GiB
(EngineCore_DP0 pid=272) INFO 10-09 11:28:56 [kv_cache_utils.py:1087] GPU KV cache size: 973,760 tokens
(EngineCore_DP0 pid=272) INFO 10-09 11:28:56 [kv_cache_utils.py:1091] Maximum concurrency for 262,144 tokens per request: 14.77x
(Worker_TP0 pid=514) INFO 10-09 11:29:26 [gpu_model_runner.py:3480] Graph capturing finished in 20 secs, took 2.37 GiB
(Worker_TP0 pid=514) INFO 10-09 11:29:26 [gpu_worker.py:391] Free memory on device (138.85/139.81 GiB) on startup. Desired GPU memory utilization is (0.9, 125.83 GiB). Actual usage is 74.28 GiB for weight, 5.58 GiB for peak activation, 1.38 GiB for non-torch memory, and 2.37 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=46000000000` to fit into requested memory, or `--kv-cache-memory=59000000000` to fully utilize gpu memory. Current kv cache memory in use is 47800000000 bytes.
""",
        None,
        "v1",
        {
            "weights_gib": 74.2812,
            "non_torch_gib": 1.38,
            "activation_peak_gib": 5.58,
            "cudagraph_gib": 2.37,
            "available_kv_gib": 44.59,
            "free_at_start_gib": 138.85,
            "gpu_mem_gib_reported": 139.81,
            "budget_gib": 125.83,
            "kv_tokens": 973760,
            "max_concurrency": 14.77,
        },
        {"block_size": 544, "gpu_memory_utilization": 0.9, "max_model_len": 262144},
    ),
    "0.11: refused with an estimate": Case(
        """\
(EngineCore_DP0 pid=77) ERROR 10-22 05:05:05 [core.py:708] ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is needed, which is larger than the available KV cache memory (2.40 GiB). Based on the available memory, the estimated maximum model length is 17472. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.
""",
        None,
        None,
        {"needed_gib_one_request": 5.62, "available_kv_gib": 2.4, "estimated_max_len": 17472},
        {"max_model_len": 40960},
        "need_gt_available",
    ),
    "0.19: the pool's size was given in bytes": Case(
        """\
(EngineCore pid=51) INFO 04-28 12:00:40 [core.py:105] Initializing a V1 LLM engine (v0.19.1) with config: model='qwen3-8b', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, data_parallel_size=1, decode_context_parallel_size=1, quantization=None, kv_cache_dtype=auto,
(EngineCore pid=51) INFO 04-28 12:00:47 [gpu_worker.py:381] Initial free memory 77.50 GiB, reserved 5.32 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling. This does not respect the gpu_memory_utilization config.
(EngineCore pid=51) INFO 04-28 12:00:47 [kv_cache_utils.py:1319] GPU KV cache size: 38,736 tokens
""",
        "0.19.1",
        "v1",
        {"available_kv_gib": 5.32, "kv_tokens": 38736},
        {"decode_context_parallel_size": 1, "quantization": None},
    ),
    "0.21: graphs estimated before the pool": Case(
        """\
(EngineCore pid=61) INFO 06-02 10:09:00 [gpu_model_runner.py:5187] Model loading took 15.77 GiB memory and 14.250000 seconds
(EngineCore pid=61) INFO 06-02 10:10:21 [gpu_model_runner.py:6365] Estimated CUDA graph memory: 0.83 GiB total
(EngineCore pid=61) INFO 06-02 10:10:21 [gpu_worker.py:466] Available KV cache memory: 8.29 GiB
(EngineCore pid=61) INFO 06-02 10:10:21 [gpu_worker.py:481] CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.8000 is equivalent to --gpu-memory-utilization=0.7739 without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to 0.8262.
(EngineCore pid=61) INFO 06-02 10:10:22 [kv_cache_utils.py:1733] GPU KV cache size: 72,400 tokens
(EngineCore pid=61) INFO 06-02 10:10:22 [kv_cache_utils.py:1734] Maximum concurrency for 98,304 tokens per request: 6.73x
(EngineCore pid=61) INFO 06-02 10:10:40 [gpu_worker.py:621] CUDA graph pool memory: 0.71 GiB (actual), 0.83 GiB (estimated), difference: 0.12 GiB (14.5%).
""",
        None,
        "v1",
        {
            "weights_gib": 15.77,
            "cudagraph_estimate_gib": 0.83,
            "cudagraph_pool_gib": 0.71,
            "available_kv_gib": 8.29,
            "effective_utilization": 0.7739,
            "kv_tokens": 72400,
            "max_concurrency": 6.73,
        },
        {"gpu_memory_utilization": 0.8, "max_model_len": 98304},
    ),
    "0.27: size and concurrency on one line, weights and non-torch in one": Case(
        """\
(EngineCore pid=7) INFO 08-20 01:05:10 [model_runner.py:422] Model loading took 156.32 GiB memory and 220.512052 seconds
(EngineCore pid=7) INFO 08-20 01:06:10 [gpu_worker.py:637] Available KV cache memory: 86.74 GiB
(EngineCore pid=7) INFO 08-20 01:06:11 [kv_cache_utils.py:2315] GPU KV cache size: 1,500,000 tokens, Maximum concurrency for 100,000 tokens per request: 15.00x
(EngineCore pid=7) INFO 08-20 01:07:10 [gpu_worker.py:876] Free memory on device cuda:0 (266.1/267.69 GiB) on startup. Desired GPU memory utilization is (0.92, 246.27 GiB). Actual usage is 156.55 GiB for consumed memory (weights + non-torch), 2.99 GiB for peak activation, and 3.06 GiB for CUDAGraph memory. Current kv cache memory in use is 86.74 GiB.
""",
        None,
        "v1",
        {
            "weights_gib": 156.32,
            "consumed_gib": 156.55,
            "activation_peak_gib": 2.99,
            "cudagraph_gib": 3.06,
            "available_kv_gib": 86.74,
            "gpu_mem_gib_reported": 267.69,
            "budget_gib": 246.27,
            "kv_tokens": 1500000,
            "max_concurrency": 15.0,
        },
        {"max_model_len": 100000, "gpu_memory_utilization": 0.92},
    ),
    "the Ascend plugin": Case(
        """\
(EngineCore pid=88) INFO 07-29 14:00:29 [worker.py:803] Available KV cache memory: 54.98 GiB
(EngineCore pid=88) INFO 07-29 14:00:29 [kv_cache_utils.py:2203] GPU KV cache size: 514,688 tokens
(EngineCore pid=88) INFO 07-29 14:00:29 [kv_cache_utils.py:2204] Maximum concurrency for 40,960 tokens per request: 12.57x
(EngineCore pid=88) INFO 07-29 14:00:29 [worker.py:1029] Free memory on device (60.95/61.27 GiB) on startup. Desired GPU memory utilization is (0.92, 56.37 GiB). Actual usage: 1.14 GiB for weights, 0.22 GiB for peak activation, 0.03 GiB for non-torch memory, 0.09 GiB for NPU graph memory. Current KV cache memory: 54.98 GiB.
""",
        None,
        "v1",
        {
            "weights_gib": 1.14,
            "non_torch_gib": 0.03,
            "activation_peak_gib": 0.22,
            "cudagraph_gib": 0.09,
            "available_kv_gib": 54.98,
            "gpu_mem_gib_reported": 61.27,
            "kv_tokens": 514688,
        },
        {"gpu_memory_utilization": 0.92},
    ),
    "refused before loading": Case(
        """\
(EngineCore pid=99) ValueError: Free memory on device cuda:0 (60.5/79.25 GiB) on startup is less than desired GPU memory utilization (0.9, 71.32 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.
""",
        None,
        None,
        {"free_at_start_gib": 60.5, "gpu_mem_gib_reported": 79.25, "budget_gib": 71.32},
        {"gpu_memory_utilization": 0.9},
        "free_memory_lt_budget",
    ),
    "out of memory while loading": Case(
        """\
(EngineCore pid=99) INFO 07-29 14:00:29 [core.py:105] Initializing a V1 LLM engine (v0.20.0) with config: model='a', max_seq_len=4096,
(EngineCore pid=99) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.58 GiB of which 100.50 MiB is free. Process 4711 has 23.40 GiB memory in use.
""",
        "0.20.0",
        "v1",
        {"tried_gib": 0.5, "gpu_mem_gib_reported": 23.58, "free_gib": 100.5 / 1024},
        {"model": "a"},
        "oom_before_kv_alloc",
    ),
}

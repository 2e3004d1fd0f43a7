"""Start-ups of SGLang, TensorRT-LLM and llama.cpp written for the tests."""

# ruff: noqa: E501 (a server's line is as long as it is)

from __future__ import annotations

from tests.startup_logs.logs_vllm import Case

SGLANG: dict[str, Case] = {
    "0.3: no tokens in the pool's line": Case(
        """\
[08:00:01 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=64.00 GB
[08:00:02 TP0] max_total_num_tokens=440000, max_prefill_tokens=16384, max_running_requests=4000, context_len=131072
""",
        None,
        None,
        {"free_after_weights_gib": 64.0, "kv_tokens": 440000},
        {"max_num_seqs": 4000, "max_model_len": 131072},
    ),
    "0.4.4: a dense model": Case(
        """\
[2025-03-27 12:46:40] server_args=ServerArgs(model_path='qwen3-235b-fp8', tokenizer_path='qwen3-235b-fp8', dtype='auto', kv_cache_dtype='auto', quantization='fp8', context_length=None, mem_fraction_static=0.93, max_running_requests=None, max_total_tokens=None, chunked_prefill_size=8192, page_size=1, tp_size=1, dp_size=1, disable_radix_cache=False, disable_cuda_graph=False, speculative_algorithm=None)
[2025-03-27 12:47:06 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=22.75 GB, mem usage=55.25 GB.
[2025-03-27 12:47:06 TP0] KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB
[2025-03-27 12:47:06 TP0] Memory pool end. avail mem=6.25 GB
[2025-03-27 12:47:16 TP0] Capture cuda graph end. Time elapsed: 10.00 s. mem usage=1.25 GB. avail mem=5.00 GB.
[2025-03-27 12:47:16 TP0] max_total_num_tokens=367404, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2049, context_len=131072
[2025-03-27 12:47:20] The server is fired up and ready to roll!
""",
        None,
        None,
        {
            "weights_gib": 55.25,
            "free_after_weights_gib": 22.75,
            "kv_size_gib": 16.46,
            "kv_tokens": 367404,
            "free_after_kv_gib": 6.25,
            "cudagraph_gib": 1.25,
        },
        {
            "model": "qwen3-235b-fp8",
            "mem_fraction_static": 0.93,
            "chunked_prefill_size": 8192,
            "block_size": 1,
            "enable_prefix_caching": True,
            "enforce_eager": False,
            "max_num_seqs": 2049,
            "max_model_len": 131072,
        },
    ),
    "0.5: a latent cache, attention data parallel": Case(
        """\
[2025-11-11 11:11:13 DP0 TP0 EP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=30.00 GB, mem usage=107.07 GB.
[2025-11-11 11:11:13 DP0 TP0 EP0] KV Cache is allocated. #tokens: 524288, KV size: 17.16 GB
[2025-11-11 11:11:14 DP0 TP0 EP0] max_total_num_tokens=524288, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=512, context_len=163840, available_gpu_mem=9.25 GB
""",
        None,
        None,
        {"weights_gib": 107.07, "kv_size_gib": 17.16, "kv_tokens": 524288, "free_gib": 9.25},
        {"max_num_seqs": 512, "max_model_len": 163840},
    ),
    "0.5: states beside the cache": Case(
        """\
[2026-04-20 10:00:01 TP0] Mamba Cache is allocated. max_mamba_cache_size: 49, conv_state size: 0.06GB, ssm_state size: 6.40GB
[2026-04-20 10:00:01 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 2618868, K size: 19.98 GB, V size: 19.98 GB
[2026-04-20 10:00:01 TP0] Memory pool end. avail mem=4.50 GB
""",
        None,
        None,
        {"state_gib": 6.46, "kv_size_gib": 39.96, "kv_tokens": 2618868, "free_after_kv_gib": 4.5},
        {},
    ),
    "0.5: two pools of a model with sliding windows": Case(
        """\
[2026-02-10 10:00:01] KV Cache is allocated. #tokens: 30000, K size: 1.50 GB, V size: 1.50 GB
[2026-02-10 10:00:01] KV Cache is allocated. #tokens: 40000, K size: 0.20 GB, V size: 0.20 GB
[2026-02-10 10:00:01] SWAKVPool mem usage: 3.40 GB, swa size: 30000, full size: 40000
""",
        None,
        None,
        {"kv_size_gib": 3.4, "kv_tokens": 40000, "kv_swa_tokens": 30000},
        {},
    ),
    "0.5: a draft's pool behind the target's": Case(
        """\
[2026-08-20 10:00:01 TP0] Load weight end. elapsed=9.1 s, type=QwenForCausalLM, avail mem=40.00 GB, mem usage=36.25 GB.
[2026-08-20 10:01:01 TP0] KV Cache is allocated. #tokens: 160000, K size: 5.00 GB, V size: 5.00 GB
[2026-08-20 10:02:01 TP0] Load weight end. elapsed=1.1 s, type=QwenEagle, avail mem=28.00 GB, mem usage=1.10 GB.
[2026-08-20 10:02:01 TP0] KV Cache is allocated. #tokens: 160000, K size: 0.25 GB, V size: 0.25 GB
[2026-08-20 10:03:01 TP0] Capture target decode CUDA graph end. elapsed=20.00 s, mem usage=1.75 GB, avail mem=8.00 GB.
""",
        None,
        None,
        {
            "weights_gib": 36.25,
            "kv_size_gib": 10.0,
            "kv_tokens": 160000,
            "draft_kv_size_gib": 0.5,
            "draft_kv_tokens": 160000,
            "cudagraph_gib": 1.75,
        },
        {},
    ),
    "refused": Case(
        """\
[2026-08-15 03:50:05 TP0] Load weight end. elapsed=9.1 s, type=A, avail mem=1.20 GB, mem usage=22.10 GB.
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.88
""",
        None,
        None,
        {"weights_gib": 22.1},
        {"mem_fraction_static": 0.88},
        "no_available_memory",
    ),
}

TENSORRT: dict[str, Case] = {
    "0.5: tokens and bytes": Case(
        """\
[TensorRT-LLM] TensorRT-LLM version: 0.8.0
[TensorRT-LLM][INFO] Allocate 5619318784 bytes for k/v cache.
[TensorRT-LLM][INFO] Using 10718 tokens in paged KV cache.
""",
        "0.8.0",
        None,
        {"kv_size_gib": 5619318784 / 2**30, "kv_tokens": 10718},
        {},
    ),
    "0.13: an engine of the C++ runtime": Case(
        """\
[TensorRT-LLM][INFO] TRTGptModel maxNumSequences: 64
[TensorRT-LLM][INFO] TRTGptModel maxNumTokens: 8192
[TensorRT-LLM][INFO] Loaded engine size: 7000 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 512.50 MiB for execution context memory.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.25 GB GPU memory for runtime buffers.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 2.50 GB GPU memory for decoder.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.25 GiB, available: 60.50 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4400
[TensorRT-LLM][INFO] Number of blocks in KV cache secondary pool: 0, onboard blocks to primary memory before reuse: true
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 54.45 GiB for max tokens in paged KV cache (281600).
""",
        None,
        None,
        {
            "engine_size_gib": 7000 / 1024,
            "execution_context_gib": 512.50 / 1024,
            "runtime_buffers_gib": 1.25,
            "decoder_gib": 2.5,
            "gpu_mem_gib_reported": 79.25,
            "free_before_kv_gib": 60.5,
            "num_gpu_blocks": 4400,
            "num_cpu_blocks": 0,
            "kv_size_gib": 54.45,
            "kv_tokens": 281600,
        },
        {"block_size": 64, "max_num_seqs": 64, "max_num_batched_tokens": 8192},
    ),
    "1.x: the PyTorch backend allocates twice": Case(
        """\
[12/22/2025-08:00:10] [TRT-LLM] [I] TensorRT LLM version: 1.2.0rc5
[12/22/2025-08:00:10] [TRT-LLM] [W] Both free_gpu_memory_fraction and max_tokens are set (to 0.8999999761581421 and 8192, respectively). The smaller value will be used.
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.50 GiB for max tokens in paged KV cache (8192).
[12/22/2025-08:00:10] [TRT-LLM] [I] max_seq_len=8192, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[12/22/2025-08:00:51] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 16.75 GiB
[12/22/2025-08:00:51] [TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: 0.75 GiB
[12/22/2025-08:00:51] [TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 1.25 GiB
[12/22/2025-08:00:51] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 25.50 GiB, available KV cache memory when calculating max tokens: 4.67 GiB, fraction is set 0.8999999761581421, kv size is 147456. device total memory 31.75 GiB, , tmp kv_mem 0.50 GiB
[12/22/2025-08:00:51] [TRT-LLM] [I] Estimated max memory in KV cache : 4.67 GiB
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 4.67 GiB for max tokens in paged KV cache (33984).
""",
        "1.2.0rc5",
        None,
        {
            "weights_gib": 16.75,
            "activation_peak_gib": 0.75,
            "non_torch_gib": 1.25,
            "peak_gib": 25.50,
            "available_kv_gib": 4.67,
            "gpu_mem_gib_reported": 31.75,
            "kv_size_gib": 4.67,
            "kv_tokens": 33984,
        },
        {
            "free_gpu_memory_fraction": 0.8999999761581421,
            "block_size": 32,
            "kv_bytes_per_token": 147456,
            "max_tokens": 8192,
            "max_model_len": 8192,
        },
    ),
    "1.x: the second cache manager": Case(
        """\
[TensorRT-LLM] TensorRT LLM version: 1.3.0rc25
[12/22/2025-08:00:51] [TRT-LLM] [RANK 0] [I] Peak memory during memory usage profiling (torch + non-torch): 90.25 GiB, available KV cache memory when calculating max tokens: 42.00 GiB, fraction is set 0.85, kv size per token is 34560. device total memory 139.75 GiB
[12/22/2025-08:00:52] [TRT-LLM] [RANK 0] [I] KV cache manager v2 device quota set to 42.001953125GiB
""",
        "1.3.0rc25",
        None,
        {"peak_gib": 90.25, "available_kv_gib": 42.001953125, "gpu_mem_gib_reported": 139.75},
        {"free_gpu_memory_fraction": 0.85, "kv_bytes_per_token": 34560},
    ),
    "1.x: blocks of every window": Case(
        """\
[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 256 [window size=16384], tokens per block=32, primary blocks=116617, secondary blocks=128, max sequence length=16384
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 78.30 GiB for max tokens in paged KV cache (3731744).
""",
        None,
        None,
        {
            "num_gpu_blocks": 116617,
            "num_cpu_blocks": 128,
            "kv_size_gib": 78.3,
            "kv_tokens": 3731744,
        },
        {"block_size": 32},
    ),
}

LLAMA: dict[str, Case] = {
    "2023: sizes in MB": Case(
        """\
main: build = 900 (abc1234)
llama_model_load_internal: n_ctx      = 512
llama_new_context_with_model: kv self size  =  162.50 MB
""",
        "b900",
        None,
        {"kv_size_gib": 162.5 / 1024},
        {"n_ctx": 512},
    ),
    "2024: buffers by device": Case(
        """\
build: 3500 (abc1234) with cc
llama_model_loader: loaded meta data with 33 key-value pairs and 292 tensors from /models/a.gguf (version GGUF V3 (latest))
llm_load_print_meta: model ftype      = Q4_K - Medium
llm_load_tensors: offloaded 33/33 layers to GPU
llm_load_tensors:        CPU buffer size =   281.81 MiB
llm_load_tensors:      CUDA0 buffer size =  4403.50 MiB
llama_new_context_with_model: n_ctx      = 8192
llama_new_context_with_model: n_batch    = 2048
llama_new_context_with_model: n_ubatch   = 512
llama_new_context_with_model: flash_attn = 0
llama_kv_cache_init:      CUDA0 KV buffer size =   768.00 MiB
llama_kv_cache_init:      CUDA1 KV buffer size =   256.00 MiB
llama_new_context_with_model: KV self size  = 1024.00 MiB, K (f16):  512.00 MiB, V (f16):  512.00 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   560.00 MiB
""",
        "b3500",
        None,
        {
            "weights_gib": (281.81 + 4403.5) / 1024,
            "kv_size_gib": 1.0,
            "kv_buffer_gib": 1.0,
            "compute_buffer_gib": 560 / 1024,
        },
        {
            "model": "/models/a.gguf",
            "quantization": "Q4_K - Medium",
            "n_gpu_layers": 33,
            "n_ctx": 8192,
            "n_ubatch": 512,
            "flash_attn": "0",
            "kv_cache_dtype": "f16",
        },
    ),
    "early 2025: buffers only": Case(
        """\
llama_init_from_model: n_ctx         = 4096
llama_kv_cache_init:      CUDA0 KV buffer size =  1536.00 MiB
""",
        None,
        None,
        {"kv_size_gib": 1.5, "kv_buffer_gib": 1.5},
        {"n_ctx": 4096},
    ),
    "mid 2025: the unified cache over two hosts": Case(
        """\
llama_context: n_ctx         = 4096
llama_context: n_ctx_per_seq = 4096
llama_context: kv_unified    = false
llama_kv_cache_unified: RPC[10.0.0.1:50052] KV buffer size =   700.00 MiB
llama_kv_cache_unified: RPC[10.0.0.2:50052] KV buffer size =   580.00 MiB
llama_kv_cache_unified: size = 1280.00 MiB (  4096 cells,  80 layers,  1/1 seqs), K (f16):  640.00 MiB, V (q8_0):  640.00 MiB
""",
        None,
        None,
        {"kv_size_gib": 1.25, "kv_buffer_gib": 1.25, "kv_tokens": 4096},
        {"n_ctx": 4096, "n_ctx_seq": 4096, "kv_unified": False, "kv_cache_dtype": "f16/q8_0"},
    ),
    "today: sliding windows, four streams": Case(
        """\
0.00.100.001 I llama_context: n_seq_max     = 4
0.00.100.001 I llama_context: n_ctx         = 131072
0.00.100.001 I llama_context: n_ctx_seq     = 32768
0.00.100.001 I llama_kv_cache_iswa: creating non-SWA KV cache, size = 32768 cells
0.00.100.001 I llama_kv_cache: size = 3072.00 MiB ( 32768 cells,  12 layers,  4/4 seqs), K (f16): 1536.00 MiB, V (f16): 1536.00 MiB
0.00.100.001 I llama_kv_cache_iswa: creating     SWA KV cache, size = 768 cells
0.00.100.001 I llama_kv_cache: size =   72.00 MiB (   768 cells,  12 layers,  4/4 seqs), K (f16):   36.00 MiB, V (f16):   36.00 MiB
""",
        None,
        None,
        {
            "kv_size_gib": 3144 / 1024,
            "kv_full_gib": 3.0,
            "kv_swa_gib": 72 / 1024,
            "kv_tokens": 131072,
            "kv_swa_tokens": 3072,
        },
        {"n_seq_max": 4, "n_ctx": 131072, "n_ctx_seq": 32768},
    ),
    "today: states, several tries, a draft model": Case(
        """\
llama_model_loader: loaded meta data with 40 key-value pairs and 500 tensors from main.gguf (version GGUF V3 (latest))
load_tensors: loading model tensors, this can take a while... (mmap = true)
load_tensors:        CUDA0 model buffer size =  9000.00 MiB
llama_context: n_ctx         = 270004
llama_kv_cache: size = 8192.00 MiB (270004 cells,   8 layers,  1/1 seqs), K (f16): 4096.00 MiB, V (f16): 4096.00 MiB
llama_model_loader: loaded meta data with 40 key-value pairs and 500 tensors from main.gguf (version GGUF V3 (latest))
load_tensors:        CUDA0 model buffer size =  9000.00 MiB
llama_context: n_ctx         = 65536
llama_kv_cache: size = 2048.00 MiB ( 65536 cells,   8 layers,  1/1 seqs), K (f16): 1024.00 MiB, V (f16): 1024.00 MiB
llama_memory_recurrent: size =   62.81 MiB (     1 cells,  32 layers,  1 seqs), R (f32):    2.81 MiB, S (f32):   60.00 MiB
llama_model_loader: loaded meta data with 30 key-value pairs and 200 tensors from draft.gguf (version GGUF V3 (latest))
load_tensors:        CUDA0 model buffer size =   500.00 MiB
llama_context: n_ctx         = 4096
llama_kv_cache: size =   48.00 MiB (  4096 cells,  24 layers,  1/1 seqs), K (f16):   24.00 MiB, V (f16):   24.00 MiB
main: server is listening on http://127.0.0.1:8080
""",
        None,
        None,
        {
            "weights_gib": 9000 / 1024,
            "kv_size_gib": 2.0,
            "kv_tokens": 65536,
            "state_gib": 62.81 / 1024,
            "draft_kv_size_gib": 48 / 1024,
        },
        {"model": "main.gguf", "n_ctx": 65536},
    ),
    "refused": Case(
        """\
llama_init_from_model: n_ctx         = 131072
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 0: cudaMalloc failed: out of memory
llama_kv_cache_init: failed to allocate buffer for kv cache
""",
        None,
        None,
        {},
        {"n_ctx": 131072},
        "oom_before_kv_alloc",
    ),
}

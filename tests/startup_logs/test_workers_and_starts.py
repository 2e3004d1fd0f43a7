"""Which of several readings counts: workers, repeats, restarts, messages after the start."""

# ruff: noqa: E501 (lines of logs)

from __future__ import annotations

import pytest

from kvsim.errors import InputError
from kvsim.startup_logs import read_startup_log

TWO_RANKS = """\
(Worker_TP0 pid=79) INFO 07-05 08:55:40 [gpu_model_runner.py:1] Model loading took 80.84 GiB memory and 9.5 s
(Worker_TP1 pid=80) INFO 07-05 08:55:40 [gpu_model_runner.py:1] Model loading took 80.90 GiB memory and 9.5 s
(Worker_TP0 pid=79) INFO 07-05 08:55:49 [gpu_worker.py:466] Available KV cache memory: 19.27 GiB
(Worker_TP1 pid=80) INFO 07-05 08:55:49 [gpu_worker.py:466] Available KV cache memory: 17.14 GiB
(EngineCore pid=58) INFO 07-05 08:55:49 [kv_cache_utils.py:1733] GPU KV cache size: 2,356,056 tokens
""".splitlines()


def test_the_pool_is_told_of_the_worker_with_the_least_and_the_weights_of_the_one_with_most() -> (
    None
):
    log = read_startup_log(TWO_RANKS)
    pool, weights = log.figures["available_kv_gib"], log.figures["weights_gib"]
    assert (pool.value, pool.worker, pool.rule, pool.line) == (
        17.14,
        "Worker_TP1 pid=80",
        "smallest",
        4,
    )
    assert [one.value for one in pool.readings] == [19.27, 17.14]
    assert (weights.value, weights.rule) == (80.9, "largest")
    assert log.figures["kv_tokens"].worker == "EngineCore pid=58"
    assert log.figures["kv_tokens"].rule == "only"


def test_a_worker_s_figures_belong_to_one_budget() -> None:
    own = read_startup_log(TWO_RANKS).of_worker("Worker_TP0 pid=79")
    assert {name: one.value for name, one in own.items()} == {
        "weights_gib": 80.84,
        "available_kv_gib": 19.27,
    }


@pytest.mark.parametrize(
    ("prefix", "worker"),
    [
        ("(EngineCore_DP0 pid=123) INFO 01-02 03:04:05 [a.py:1] ", "EngineCore_DP0 pid=123"),
        ("(VllmWorker rank=3 pid=9) INFO 01-02 03:04:05 [a.py:1] ", "VllmWorker rank=3 pid=9"),
        (
            "(VllmWorkerProcess pid=536) (VllmWorkerProcess pid=532) INFO ",
            "VllmWorkerProcess pid=532",
        ),
        (
            "(EngineCore pid=1) (RayWorkerWrapper pid=2, ip=10.0.0.7) INFO ",
            "RayWorkerWrapper pid=2",
        ),
        ("(RayWorkerWrapper pid=456, ip=10.0.0.7) INFO ", "RayWorkerWrapper pid=456"),
        ("INFO 01-02 03:04:05 [a.py:1] ", None),
    ],
)
def test_the_process_named_last_in_front_of_a_figure_printed_it(
    prefix: str, worker: str | None
) -> None:
    log = read_startup_log([prefix + "Available KV cache memory: 1.00 GiB"])
    assert log.figures["available_kv_gib"].worker == worker


@pytest.mark.parametrize(
    ("prefix", "worker"),
    [
        ("[2025-11-04 05:27:13 DP0 TP1 EP0] ", "DP0 TP1 EP0"),
        ("[2025-11-04 05:27:13] ", None),
        ("[14:00:01 TP3] ", "TP3"),
        ("[gpu_id=0] ", "gpu_id=0"),
    ],
)
def test_sglang_s_ranks_are_told(prefix: str, worker: str | None) -> None:
    log = read_startup_log([prefix + "KV Cache is allocated. #tokens: 64, KV size: 1.00 GB"])
    assert log.figures["kv_size_gib"].worker == worker


@pytest.mark.parametrize(
    ("prefix", "worker"),
    [
        ("[01/16/2026-06:20:17] [TRT-LLM] [RANK 2] [I] ", "RANK 2"),
        ("[1,5]<stdout>:[TensorRT-LLM][INFO] ", "5"),
    ],
)
def test_tensorrt_s_ranks_are_told(prefix: str, worker: str) -> None:
    log = read_startup_log([prefix + "Number of blocks in KV cache primary pool: 82"])
    assert log.figures["num_gpu_blocks"].worker == worker


def test_blocks_are_told_by_window_and_those_of_the_measuring_pool_are_forgotten() -> None:
    def pool(window: int, blocks: int) -> str:
        return (
            f"[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 65 [window size={window}], "
            f"tokens per block=32, primary blocks={blocks}, secondary blocks=0, max sequence "
            "length=2049"
        )

    allocated = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in paged KV cache ({})."
    found = read_startup_log(
        [
            pool(8224, 257),
            allocated.format("0.56", 8224),
            pool(512, 9000),
            pool(32768, 4000),
            allocated.format("9.00", 128000),
        ]
    ).figures["num_gpu_blocks"]
    assert [(one.worker, one.value) for one in found.readings] == [
        ("window 512", 9000),
        ("window 32768", 4000),
    ]
    assert (found.value, found.rule) == (4000, "smallest")


def test_two_figures_on_one_line_without_a_break_are_both_read() -> None:
    one = "(Worker_TP0 pid=1) INFO Available KV cache memory: 2.00 GiB"
    two = "(Worker_TP1 pid=2) INFO Available KV cache memory: 3.00 GiB"
    found = read_startup_log([one + two]).figures["available_kv_gib"]
    assert [reading.value for reading in found.readings] == [2.0, 3.0]


BANNER = "INFO [api_server.py:1] vLLM API server version 0.11.0"


def test_of_several_starts_the_last_that_told_anything_is_reported() -> None:
    first = [BANNER, "(Worker pid=2) Available KV cache memory: 1.00 GiB"]
    second = [BANNER, "(Worker pid=9) Available KV cache memory: 2.00 GiB"]
    log = read_startup_log([*first, *second])
    assert (log.figures["available_kv_gib"].value, log.starts) == (2.0, 2)
    assert len(log.figures["available_kv_gib"].readings) == 1
    cut = read_startup_log([*first, *second, BANNER])
    assert (cut.figures["available_kv_gib"].value, cut.starts) == (2.0, 3)


def test_several_engines_of_one_start_are_no_restart() -> None:
    lines = [
        BANNER,
        "(EngineCore_DP0 pid=5) Initializing a V1 LLM engine (v0.11.0) with config: model='a',",
        "(EngineCore_DP0 pid=5) Available KV cache memory: 1.00 GiB",
        "(EngineCore_DP1 pid=6) Initializing a V1 LLM engine (v0.11.0) with config: model='a',",
        "(EngineCore_DP1 pid=6) Available KV cache memory: 2.00 GiB",
    ]
    log = read_startup_log(lines)
    assert (log.starts, log.figures["available_kv_gib"].value) == (1, 1.0)
    assert len(log.figures["available_kv_gib"].readings) == 2


def test_a_banner_twice_before_any_figure_is_one_start() -> None:
    arguments = "non-default args: {'max_num_seqs': 7}"
    log = read_startup_log([BANNER, arguments, BANNER, "Available KV cache memory: 1.00 GiB"])
    assert (log.starts, log.settings["max_num_seqs"].value) == (1, 7)


def test_a_state_of_a_bar_says_nothing_of_who_prints_next() -> None:
    line = "(Worker pid=1) Loading: 50%\rAvailable KV cache memory: 1.00 GiB"
    assert read_startup_log([line]).figures["available_kv_gib"].worker is None


def test_what_happens_after_the_start_is_no_refusal() -> None:
    pool = "INFO Available KV cache memory: 2.00 GiB"
    memory = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.0 GiB"
    ready = "INFO:     Application startup complete."
    refused = read_startup_log([pool, memory])
    assert refused.refusal is not None
    assert refused.refusal.kind == "oom_after_kv_alloc"
    assert refused.refusal.numbers["tried_gib"].value == 1.0
    assert not refused.ready
    none = "ValueError: No available memory for the cache blocks."
    for lines in ([pool, memory, ready], [pool, ready, memory], [pool, ready, none]):
        log = read_startup_log(lines)
        assert log.refusal is None
        assert log.ready


def test_the_first_refusal_counts_and_keeps_its_own_numbers() -> None:
    lines = [
        "(EngineCore pid=1) ERROR ValueError: To serve at least one request with the model's max "
        "seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV "
        "cache memory (9.97 GiB). Based on the available memory, the estimated maximum model "
        "length is 81664. Try increasing `gpu_memory_utilization`.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
    ]
    refusal = read_startup_log(lines).refusal
    assert refusal is not None
    assert (refusal.kind, refusal.line, refusal.worker) == (
        "need_gt_available",
        1,
        "EngineCore pid=1",
    )
    assert {name: one.value for name, one in refusal.numbers.items()} == {
        "needed_gib_one_request": 16.0,
        "available_kv_gib": 9.97,
        "estimated_max_len": 81664,
    }


def test_an_engine_s_setting_counts_more_than_an_argument_and_that_more_than_an_aside() -> None:
    aside = "Maximum concurrency for 100 tokens per request: 2.00x"
    argument = "non-default args: {'max_model_len': 200, 'gpu_memory_utilization': 0.875}"
    engine = "Initializing a V1 LLM engine (v0.11.0) with config: model='a', max_seq_len=300,"
    budget = "INFO total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.88) = 7.00GiB"
    for lines, length in (
        ([aside], 100),
        ([argument, aside], 200),
        ([engine, argument, aside], 300),
    ):
        assert read_startup_log(lines).settings["max_model_len"].value == length
    rounded = read_startup_log([budget]).settings["gpu_memory_utilization"]
    assert (rounded.value, rounded.decimals, rounded.rounding) == (0.88, 2, 0.005)
    exact = read_startup_log([argument, budget]).settings["gpu_memory_utilization"]
    assert (exact.value, exact.decimals, exact.rounding) == (0.875, None, 0.0)


def test_two_decimals_say_half_a_hundredth_and_a_sum_says_twice_that() -> None:
    line = "KV Cache is allocated. #tokens: 10, K size: 8.23 GB, V size: 8.23 GB"
    size = read_startup_log([line]).figures["kv_size_gib"]
    assert (size.value, size.decimals, size.rounding) == (16.46, 2, 0.01)
    mib = read_startup_log(["llama_init: KV self size  =  162.50 MiB"]).figures["kv_size_gib"]
    assert (mib.value, mib.rounding) == (162.5 / 1024, 0.005 / 1024)
    usage = read_startup_log(["Actual usage is 15.27 GiB for weight, 1.4 GiB for peak activation"])
    assert usage.figures["activation_peak_gib"].rounding == 0.005  # trailing zeros are dropped here
    tokens = read_startup_log([line]).figures["kv_tokens"]
    assert (tokens.value, tokens.unit, tokens.rounding) == (10, "tokens", 0.0)


def test_a_log_of_two_servers_is_asked_about() -> None:
    lines = [
        "INFO GPU KV cache size: 136,080 tokens",
        "[2025-01-01 00:00:00] KV Cache is allocated. #tokens: 64, KV size: 1.00 GB",
    ]
    with pytest.raises(InputError, match=r"lines of vllm and sglang\. Name one with server='vllm'"):
        read_startup_log(lines)
    assert read_startup_log(lines, server="sglang").figures["kv_tokens"].value == 64
    assert read_startup_log(lines, server="vllm").figures["kv_tokens"].value == 136080
